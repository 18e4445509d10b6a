// C linkage over what llama.cpp exports as C++, and reductions over its output rows. No exception crosses.
#include "chain.h"
#include "guard.h"

#include "ggml-backend.h"
#include "llama-ext.h"
#include "llama.h"

#include <algorithm>
#include <chrono>
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

int vocab_size(llama_context * ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

// First index of the largest value, in two scans that the compiler can vectorise.
int argmax(const float * x, int n) {
    float best = x[0];
    for (int i = 1; i < n; ++i) {
        best = x[i] > best ? x[i] : best;
    }
    for (int i = 0; i < n; ++i) {
        if (x[i] == best) {
            return i;
        }
    }
    return 0;
}

int choose(llama_context * ctx, int n_rows, int32_t * ids) {
    const float * rows = llama_get_logits(ctx);
    if (!rows) {
        return fail("no logits");
    }
    const int n_vocab = vocab_size(ctx);
    for (int i = 0; i < n_rows; ++i) {
        ids[i] = argmax(rows + (size_t) i * n_vocab, n_vocab);
    }
    return 0;
}

int decode(llama_context * ctx, ls_batch * batch) {
    thread_local std::vector<int32_t> ones;
    thread_local std::vector<llama_seq_id *> seqs;
    ones.assign((size_t) batch->size, 1);
    seqs.resize((size_t) batch->size);
    for (int i = 0; i < batch->size; ++i) {
        seqs[i] = batch->seq + i;
    }
    llama_batch rows = {};
    rows.n_tokens = batch->size;
    rows.token = batch->width ? nullptr : batch->token;
    rows.embd = batch->width ? batch->embd : nullptr;
    rows.pos = batch->pos;
    rows.n_seq_id = ones.data();
    rows.seq_id = seqs.data();
    rows.logits = batch->output;
    const int rc = llama_decode(ctx, rows);
    if (rc == 0) {
        llama_synchronize(ctx);
    }
    return rc;
}

// Confidences are the first numbers of the draft's rows.
int read_confidence(llama_context * ctx, int n_rows, float * confidence) {
    const float * rows = llama_get_embeddings_nextn(ctx);
    const size_t width = (size_t) llama_model_n_embd_out(llama_get_model(ctx));
    for (int i = 0; rows && i < n_rows; ++i) {
        confidence[i] = rows[(size_t) i * width];
    }
    return rows ? 0 : fail("the draft gave no confidences");
}

// First index of the largest sum.
int argmax_of_sum(const float * x, const float * y, int n) {
    float best = x[0] + y[0];
    for (int i = 1; i < n; ++i) {
        best = x[i] + y[i] > best ? x[i] + y[i] : best;
    }
    for (int i = 0; i < n; ++i) {
        if (x[i] + y[i] == best) {
            return i;
        }
    }
    return 0;
}

// Ids of a decode with noise. A chain in the graph says what it chose: of equal sums a backend may take any.
int choose_drawn(llama_context * ctx, int n_rows, const float * noise, const int8_t * drawn, bool chained, int32_t * ids) {
    const float * logits = llama_get_logits(ctx);
    const float * rows = chained ? llama_get_embeddings_nextn(ctx) : nullptr;
    if (!logits || (chained && !rows)) {
        return fail("the draft gave no choices");
    }
    const int n_vocab = vocab_size(ctx);
    const size_t width = (size_t) llama_model_n_embd_out(llama_get_model(ctx));
    for (int i = 0; i < n_rows; ++i) {
        const size_t first = (size_t) i * n_vocab;
        if (!drawn[i]) {
            ids[i] = argmax(logits + first, n_vocab);
        } else if (chained) {
            ids[i] = (int32_t) rows[(size_t) i * width + 1];
        } else {
            ids[i] = argmax_of_sum(logits + first, noise + first, n_vocab);
        }
    }
    return 0;
}

// The noise of one decode; what the draft's rows give has to be put out to read a chain's choices.
struct Noise {
    Noise(llama_context * ctx, const float * rows, int n_rows, bool reads) : ctx(ctx) {
        chained = llama_set_draft_noise(ctx, rows, n_rows);
        borrows = chained && !reads;
        if (borrows) {
            llama_set_embeddings_nextn(ctx, true, true);
        }
    }
    ~Noise() {
        llama_set_draft_noise(ctx, nullptr, 0);
        if (borrows) {
            llama_set_embeddings_nextn(ctx, false, true);
        }
    }
    Noise(const Noise &) = delete;
    Noise & operator=(const Noise &) = delete;

    llama_context * ctx;
    bool chained, borrows;
};

// The layer inputs that taps name of one row of the last decode.
int gather(llama_context * ctx, const int32_t * taps, int n_taps, int row, float * out) {
    const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx));
    for (int k = 0; k < n_taps; ++k) {
        const float * layer = llama_get_embeddings_layer_inp(ctx, (uint32_t) taps[k]);
        if (!layer) {
            return fail("the target published no features");
        }
        std::memcpy(out + k * width, layer + (size_t) row * width, width * sizeof(float));
    }
    return 0;
}

bool starts_block(const ls_batch * batch, int i) {
    return i == 0 || batch->seq[i] != batch->seq[i - 1];
}

void drop_blocks(llama_context * ctx, const ls_batch * batch) {
    for (int i = 0; i < batch->size; ++i) {
        if (starts_block(batch, i)) {
            llama_memory_seq_rm(llama_get_memory(ctx), batch->seq[i], batch->pos[i], -1);
        }
    }
}

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

int ls_decode(llama_context * ctx, ls_batch * batch) {
    return guarded(-1001, [&] { return decode(ctx, batch); });
}

int ls_decode_choose(llama_context * ctx, ls_batch * batch, int n_rows, int32_t * ids, const int32_t * taps, int n_taps,
                     float * features) {
    return guarded(-1001, [&] {
        const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx)) * n_taps;
        int rc = decode(ctx, batch);
        if (rc == 0) {
            rc = choose(ctx, n_rows, ids);
        }
        for (int i = 0; rc == 0 && n_taps > 0 && i < n_rows; ++i) {
            rc = gather(ctx, taps, n_taps, i, features + i * width);
        }
        return rc;
    });
}

int ls_decode_run(llama_context * ctx, ls_batch * batch, int n, double seconds, const int32_t * ends, int n_ends,
                  const int32_t * taps, int n_taps, float * features, int32_t * ids, int32_t * count) {
    return guarded(-1001, [&] {
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
        const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx)) * n_taps;
        *count = 0;
        if (batch->size != 1) {
            return fail("a run starts from one row");
        }
        for (int i = 0; i < n; ++i) {
            const int rc = decode(ctx, batch);
            if (rc != 0) {
                return i == 0 ? rc : 0;
            }
            if (choose(ctx, 1, ids + i) != 0 || gather(ctx, taps, n_taps, 0, features + i * width) != 0) {
                return -1;
            }
            *count = i + 1;
            if (std::find(ends, ends + n_ends, ids[i]) != ends + n_ends || clock::now() >= until) {
                return 0;
            }
            batch->token[0] = ids[i];
            ++batch->pos[0];
        }
        return 0;
    });
}

int ls_decode_block(llama_context * ctx, ls_batch * batch, ls_chain * chain, int n_rows, int32_t * ids, float * confidence) {
    return guarded(-1001, [&] {
        int rc = decode(ctx, batch);
        if (rc == 0) {
            rc = chain ? chain_blocks(chain, ctx, batch, nullptr, ids, confidence) : choose(ctx, n_rows, ids);
        }
        if (rc == 0 && confidence && !chain) {
            rc = read_confidence(ctx, n_rows, confidence);
        }
        drop_blocks(ctx, batch);
        return rc;
    });
}

int ls_decode_drawn(llama_context * ctx, ls_batch * batch, ls_chain * chain, const float * noise, const int8_t * drawn,
                    int32_t * ids, float * confidence) {
    return guarded(-1001, [&] {
        const int n_rows = batch->size;
        if (chain) {
            int rc = decode(ctx, batch);
            if (rc == 0) {
                rc = chain_blocks(chain, ctx, batch, noise, ids, confidence);
            }
            drop_blocks(ctx, batch);
            return rc;
        }
        const Noise given(ctx, noise, n_rows, confidence != nullptr);
        int rc = decode(ctx, batch);
        if (rc == 0) {
            rc = choose_drawn(ctx, n_rows, noise, drawn, given.chained, ids);
        }
        if (rc == 0 && confidence) {
            rc = read_confidence(ctx, n_rows, confidence);
        }
        drop_blocks(ctx, batch);
        return rc;
    });
}

int ls_decode_lattice(llama_context * ctx, ls_batch * batch, int k, int32_t * ids) {
    return guarded(-1001, [&] {
        int rc = decode(ctx, batch);
        if (rc == 0) {
            const float * rows = llama_get_embeddings_nextn(ctx);
            const size_t width = (size_t) llama_model_n_embd_out(llama_get_model(ctx));
            if (!rows || k < 1 || (size_t) k * (k + 1) > width) {
                rc = fail("the draft gave no lattice of that size");
            }
            for (int i = 0, at = 0; rc == 0 && i < batch->size; ++i) {
                const float * row = rows + (size_t) i * width;
                // the first scores of a block are the same for every predecessor: it is the anchor
                at = starts_block(batch, i) ? 0 : argmax(row + k + (size_t) at * k, k);
                ids[i] = starts_block(batch, i) ? 0 : (int32_t) row[at];
            }
        }
        drop_blocks(ctx, batch);
        return rc;
    });
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

int ls_gather_features(llama_context * ctx, const int32_t * taps, int n_taps, const int32_t * rows, int n_rows,
                       float * out) {
    return guarded(-1, [&] {
        const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx)) * n_taps;
        int rc = 0;
        for (int i = 0; rc == 0 && i < n_rows; ++i) {
            rc = gather(ctx, taps, n_taps, rows[i], out + i * width);
        }
        return rc;
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
