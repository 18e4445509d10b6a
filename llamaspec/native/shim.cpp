// C linkage over what llama.cpp exports as C++, and reductions over its output rows. No exception crosses.
#include "decode.h"
#include "guard.h"

#include "ggml-backend.h"
#include "llama-ext.h"
#include "llama.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

thread_local std::string ls_reason;

namespace {

constexpr int positions = 4;

// What Python sees as a ls_batch, followed by the memory behind its pointers.
struct BatchRows {
    ls_batch view = {};
    std::vector<int32_t> token, pos, seq;
    std::vector<float> embd;
    std::vector<int8_t> output;

    template <typename T> static T * grow(std::vector<T> & rows, size_t size) {
        rows.resize(size);
        return rows.data();
    }
};

} // namespace

const char * ls_build_info(void) {
    return LLAMASPEC_BUILD_INFO;
}

const char * ls_last_error(void) {
    return ls_reason.c_str();
}

int ls_load_backends(const char * dir) {
    return guarded(-1, [&] {
        ggml_backend_load_all_from_path(dir);
        return (int) ggml_backend_dev_count();
    });
}

llama_model * ls_model_load(const char * path, const llama_model_params * params) {
    return guarded((llama_model *) nullptr, [&] { return llama_model_load_from_file(path, *params); });
}

llama_model * ls_model_plan(const char * path, const llama_model_params * params, const char * size_key, int n_vocab) {
    return guarded((llama_model *) nullptr, [&] {
        llama_model_params wanted = *params;
        wanted.no_alloc = true;
        wanted.load_mode = LLAMA_LOAD_MODE_NONE;
        // reading the tokens is most of what a large vocabulary's model takes to load
        llama_model_kv_override given[3] = {};
        given[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
        strcpy(given[0].key, "tokenizer.ggml.model");
        strcpy(given[0].val_str, "none");
        given[1].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        strncpy(given[1].key, size_key, sizeof(given[1].key) - 1);
        given[1].val_i64 = n_vocab;
        wanted.kv_overrides = given;
        return llama_model_load_from_file(path, wanted);
    });
}

llama_context * ls_context_new(llama_model * model, const llama_context_params * params) {
    return guarded((llama_context *) nullptr, [&] { return llama_init_from_model(model, *params); });
}

int ls_memory_of(llama_context * ctx, ls_memory * parts, int size) {
    return guarded(-1, [&] {
        int n = 0;
        for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx)) {
            ggml_backend_dev_t device = ggml_backend_buft_is_host(type) ? nullptr : ggml_backend_buft_get_device(type);
            const char * name = ggml_backend_dev_name(device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
            int i = 0;
            while (i < n && strncmp(parts[i].device, name, sizeof(parts[i].device) - 1) != 0) {
                ++i;
            }
            if (i == size) {
                return fail("more devices than there is room for");
            }
            if (i == n) {
                parts[n] = {};
                strncpy(parts[n++].device, name, sizeof(parts[i].device) - 1);
            }
            parts[i].weights += bytes.model;
            parts[i].cache += bytes.context;
            parts[i].compute += bytes.compute;
        }
        return n;
    });
}

int ls_graph_nodes(llama_context * ctx, int n_rows) {
    return (int) llama_graph_max_nodes(ctx, (uint32_t) n_rows);
}

int ls_model_meta(const llama_model * model, const char * key, char * text, int size) {
    return guarded(-1, [&] { return (int) llama_model_meta_val_str(model, key, text, (size_t) size); });
}

ls_batch * ls_batch_new(int capacity, int width) {
    return guarded((ls_batch *) nullptr, [&] {
        const size_t rows = (size_t) capacity;
        auto batch = std::make_unique<BatchRows>();
        batch->view = { capacity, width, 0, batch->grow(batch->token, rows), batch->grow(batch->embd, rows * width),
                        batch->grow(batch->pos, rows * positions), batch->grow(batch->seq, rows), batch->grow(batch->output, rows) };
        return &batch.release()->view;
    });
}

void ls_batch_free(ls_batch * batch) {
    delete reinterpret_cast<BatchRows *>(batch);
}

int ls_batch_add(ls_batch * batch, const int32_t * token, int n, int start, int seq, int output) {
    const int first = batch->size;
    if (n < 1 || n > batch->capacity - first || batch->width != 0) {
        return fail("the rows do not fit the batch");
    }
    for (int i = 0; i < n; ++i) {
        batch->token[first + i] = token[i];
        batch->pos[first + i] = start + i;
        batch->seq[first + i] = seq;
        batch->output[first + i] = output == 1 || (output == 2 && i == n - 1);
    }
    batch->size += n;
    return first;
}

int ls_batch_set_embd(ls_batch * batch, const float * rows, int n, const int32_t * pos, const int32_t * seq) {
    if (n < 1 || n > batch->capacity || batch->width == 0) {
        return fail("the rows do not fit the batch");
    }
    std::memcpy(batch->embd, rows, (size_t) n * batch->width * sizeof(float));
    // a draft for an M-RoPE target reads four positions of every row, the last always 0; any other the first
    for (int plane = 0; plane < positions; ++plane) {
        for (int i = 0; i < n; ++i) {
            batch->pos[(size_t) plane * n + i] = plane < positions - 1 ? pos[i] : 0;
        }
    }
    std::memcpy(batch->seq, seq, (size_t) n * sizeof(int32_t));
    std::memset(batch->output, 0, (size_t) n);
    batch->size = n;
    return 0;
}

int ls_has_layer_input(llama_context * ctx, int layer) {
    return guarded(-1, [&] { return layer >= 0 && llama_has_embeddings_layer_inp(ctx, (uint32_t) layer) ? 1 : 0; });
}

int ls_set_taps(llama_context * ctx, const int32_t * taps, int n_taps, int publish) {
    return guarded(-1, [&] {
        const int n_layer = llama_model_n_layer(llama_get_model(ctx));
        for (int i = 0; i < n_taps; ++i) {
            if (taps[i] < 0 || taps[i] > n_layer) {
                return fail("tap outside the target's layers");
            }
        }
        for (int i = 0; i < n_taps; ++i) {
            llama_set_embeddings_layer_inp(ctx, (uint32_t) taps[i], publish != 0);
        }
        return 0;
    });
}

void ls_set_rows_alike(llama_context * ctx, int wanted) {
    llama_set_rows_alike(ctx, wanted != 0);
}

int ls_keep_graphs(llama_context * ctx, int n_graphs, int n_rows) {
    return guarded(-1, [&] {
        llama_set_graphs_kept(ctx, (uint32_t) n_graphs, (uint32_t) n_rows);
        return 0;
    });
}

int ls_graphs_reused(llama_context * ctx) {
    return llama_perf_context(ctx).n_reused;
}

int ls_draft_setup(llama_context * ctx, int causal, int rows) {
    return guarded(-1, [&] {
        llama_set_causal_attn(ctx, causal != 0);
        llama_set_embeddings_nextn(ctx, rows != LS_LOGITS, rows != LS_LATTICE);
        llama_set_draft_base(ctx, rows == LS_BASE);
        return 0;
    });
}

const float * ls_hidden(llama_context * ctx) {
    return guarded((const float *) nullptr, [&] { return (const float *) llama_get_embeddings_nextn(ctx); });
}

int ls_top2(llama_context * ctx, int n_rows, int32_t * ids, float * gap) {
    return guarded(-1, [&] {
        const float * rows = llama_get_logits(ctx);
        if (!rows) {
            return fail("no logits");
        }
        const int n_vocab = vocab_size(ctx);
        for (int i = 0; i < n_rows; ++i) {
            const float * x = rows + (size_t) i * n_vocab;
            const int top = argmax(x, n_vocab);
            float second = top == 0 ? x[n_vocab - 1] : x[0];
            for (int j = 0; j < n_vocab; ++j) {
                second = j != top && x[j] > second ? x[j] : second;
            }
            ids[i] = top;
            gap[i] = x[top] - second;
        }
        return 0;
    });
}

int ls_tokenize(const llama_vocab * vocab, const char * text, int length, int32_t * ids, int size, int add_special,
                int parse_special) {
    return guarded(-1, [&] {
        return (int) llama_tokenize(vocab, text, length, ids, size, add_special != 0, parse_special != 0);
    });
}

int ls_token_piece(const llama_vocab * vocab, int32_t id, char * text, int size, int special) {
    return guarded(-1, [&] { return (int) llama_token_to_piece(vocab, id, text, size, 0, special != 0); });
}
