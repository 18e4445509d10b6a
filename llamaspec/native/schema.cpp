// llama.cpp's converter from JSON schemas to grammars, compiled here as one piece: it belongs to a library of
// llama.cpp's tools that is not built. What it asserts becomes an exception, what it warns of is kept.
#include "guard.h"
#include "linkage.h"

#include "common.h"
#include "ggml.h"

#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

thread_local std::string warning;

int keep_warning(const char *, const char * text) {
    warning = text;
    return 0;
}

} // namespace

#undef GGML_ASSERT
#define GGML_ASSERT(x) ((x) ? (void) 0 : throw std::runtime_error("assertion: " #x))
#define fprintf(stream, ...) keep_warning(__VA_ARGS__)
#if defined(__GNUC__) && !defined(__clang__)
// some of the assertions stand in functions that let no exception out
#pragma GCC diagnostic ignored "-Wterminate"
#endif

#include "json.cpp"
#include "json-schema.cpp"
#include "json-schema-to-grammar.cpp"
#include "trie.cpp"
#include "unicode.cpp"

#undef fprintf

// the three helpers that the converter uses of common.cpp
std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (const std::string & value : values) {
        joined += (&value == values.data() ? "" : separator) + value;
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & text, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t start = 0;
    for (size_t end; (end = text.find(delimiter, start)) != std::string::npos; start = end + delimiter.size()) {
        parts.push_back(text.substr(start, end - start));
    }
    parts.push_back(text.substr(start));
    return parts;
}

std::string string_repeat(const std::string & text, size_t n) {
    std::string repeated;
    for (size_t i = 0; i < n; ++i) {
        repeated += text;
    }
    return repeated;
}

const char * ls_schema_to_grammar(const char * schema) {
    thread_local std::string grammar;
    return guarded((const char *) nullptr, [&]() -> const char * {
        warning.clear();
        grammar = json_schema_to_grammar(common_json::parse(schema), true);
        if (!warning.empty()) {
            fail(warning.c_str());
            return nullptr;
        }
        return grammar.c_str();
    });
}
