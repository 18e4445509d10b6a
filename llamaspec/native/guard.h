// What every function of C linkage does about exceptions: the reason is kept, a code is returned.
#pragma once

#include <exception>
#include <string>

extern thread_local std::string ls_reason;

inline int fail(const char * what) {
    ls_reason = what;
    return -1000;
}

template <typename R, typename F> R guarded(R on_error, F body) {
    ls_reason.clear();
    try {
        return body();
    } catch (const std::exception & e) {
        fail(e.what());
    } catch (...) {
        fail("unknown native exception");
    }
    return on_error;
}
