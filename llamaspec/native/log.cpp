// The log of llama.cpp, kept until Python drains it.
#include "linkage.h"

#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

namespace {

struct LogLine {
    int level;
    std::string text;
};

constexpr size_t log_capacity = 2000;
std::mutex log_mutex;
std::deque<LogLine> log_lines;
int log_min_level = GGML_LOG_LEVEL_WARN;
int log_last_level = GGML_LOG_LEVEL_NONE;

void on_log(ggml_log_level level, const char * text, void *) {
    std::lock_guard<std::mutex> lock(log_mutex);
    const bool continued = level == GGML_LOG_LEVEL_CONT;
    const int effective = continued ? log_last_level : level;
    log_last_level = effective;
    if (effective < log_min_level) {
        return;
    }
    if (continued && !log_lines.empty()) {
        log_lines.back().text += text;
        return;
    }
    if (log_lines.size() == log_capacity) {
        log_lines.pop_front();
    }
    log_lines.push_back({ effective, text });
}

} // namespace

void ls_log_install(int min_level) {
    {
        std::lock_guard<std::mutex> lock(log_mutex);
        log_min_level = min_level;
    }
    llama_log_set(on_log, nullptr);
}

int ls_log_next(int * level, char * text, int size) {
    std::lock_guard<std::mutex> lock(log_mutex);
    if (log_lines.empty() || size < 1) {
        return 0;
    }
    const LogLine & line = log_lines.front();
    *level = line.level;
    std::strncpy(text, line.text.c_str(), (size_t) size - 1);
    text[size - 1] = '\0';
    log_lines.pop_front();
    return 1;
}
