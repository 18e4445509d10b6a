// Servers of llama.cpp's RPC backend, by way of what that backend, where there is one, names in its registry.
#include "guard.h"
#include "linkage.h"

#include "ggml-backend.h"
#include "ggml-rpc.h"

#include <algorithm>

namespace {

using add_server = decltype(ggml_backend_rpc_add_server) *;
using connection = bool (*)(const char * endpoint, uint32_t * n_lost);

template <typename F> F rpc_function(const char * name) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    return reg ? (F) ggml_backend_reg_get_proc_address(reg, name) : nullptr;
}

} // namespace

int ls_rpc_add(const char * endpoint, ggml_backend_dev_t * devices, int n) {
    return guarded(-1000, [&] {
        const auto add = rpc_function<add_server>("ggml_backend_rpc_add_server");
        if (!add || !rpc_function<connection>("ggml_backend_rpc_connection")) {
            return fail("there is no RPC backend");
        }
        ggml_backend_reg_t server = add(endpoint);
        const int found = server ? (int) ggml_backend_reg_dev_count(server) : 0;
        for (int i = 0; i < std::min(found, n); ++i) {
            devices[i] = ggml_backend_reg_dev_get(server, (size_t) i);
        }
        return found;
    });
}

unsigned ls_rpc_lost(const char * endpoint, int * open) {
    uint32_t n_lost = 0;
    const auto ask = rpc_function<connection>("ggml_backend_rpc_connection");
    *open = ask ? ask(endpoint, &n_lost) : false;
    return n_lost;
}
