// What decodes rows: passes of the target and blocks of the draft, with the reductions over what they put out.
#include "decode.h"

#include "chain.h"
#include "guard.h"

#include "llama-ext.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace {

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

bool starts_block(const ls_batch * batch, int i) {
    return i == 0 || batch->seq[i] != batch->seq[i - 1];
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

void drop_blocks(llama_context * ctx, const ls_batch * batch) {
    for (int i = 0; i < batch->size; ++i) {
        if (starts_block(batch, i)) {
            llama_memory_seq_rm(llama_get_memory(ctx), batch->seq[i], batch->pos[i], -1);
        }
    }
}

} // namespace

int vocab_size(llama_context * ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

// Two scans that the compiler can vectorise.
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

int gather_first(llama_context * ctx, const int32_t * taps, int n_taps, int n_rows, float * out) {
    const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx)) * n_taps;
    int rc = 0;
    for (int i = 0; rc == 0 && i < n_rows; ++i) {
        rc = gather(ctx, taps, n_taps, i, out + i * width);
    }
    return rc;
}

bool is_among(const int32_t * ids, int n, int32_t id) {
    return std::find(ids, ids + n, id) != ids + n;
}

int decode_block(llama_context * ctx, ls_batch * batch, ls_chain * chain, int n_rows, int32_t * ids, float * confidence) {
    int rc = decode(ctx, batch);
    if (rc == 0) {
        rc = chain ? chain_blocks(chain, ctx, batch, nullptr, ids, confidence) : choose(ctx, n_rows, ids);
    }
    if (rc == 0 && confidence && !chain) {
        rc = read_confidence(ctx, n_rows, confidence);
    }
    drop_blocks(ctx, batch);
    return rc;
}

int ls_decode(llama_context * ctx, ls_batch * batch) {
    return guarded(-1001, [&] { return decode(ctx, batch); });
}

int ls_decode_choose(llama_context * ctx, ls_batch * batch, int n_rows, int32_t * ids, const int32_t * taps, int n_taps,
                     float * features) {
    return guarded(-1001, [&] {
        int rc = decode(ctx, batch);
        if (rc == 0) {
            rc = choose(ctx, n_rows, ids);
        }
        return rc == 0 && n_taps > 0 ? gather_first(ctx, taps, n_taps, n_rows, features) : rc;
    });
}

int ls_decode_run(llama_context * ctx, ls_batch * batch, int n, double seconds, const int32_t * ends, int n_ends,
                  const int32_t * taps, int n_taps, float * features, int32_t * ids, int32_t * count) {
    return guarded(-1001, [&] {
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
        const size_t width = (size_t) llama_model_n_embd(llama_get_model(ctx)) * n_taps;
        const int rows = batch->size;
        *count = 0;
        for (int i = 0; i < n; ++i, ids += rows, features += rows * width) {
            const int rc = decode(ctx, batch);
            if (rc != 0) {
                return i == 0 ? rc : 0;
            }
            if (choose(ctx, rows, ids) != 0 || gather_first(ctx, taps, n_taps, rows, features) != 0) {
                return -1;
            }
            *count = i + 1;
            const bool ended = std::any_of(ids, ids + rows, [&](int32_t id) { return is_among(ends, n_ends, id); });
            if (ended || clock::now() >= until) {
                return 0;
            }
            for (int row = 0; row < rows; ++row) {
                batch->token[row] = ids[row];
                ++batch->pos[row];
            }
        }
        return 0;
    });
}

int ls_decode_block(llama_context * ctx, ls_batch * batch, ls_chain * chain, int n_rows, int32_t * ids, float * confidence) {
    return guarded(-1001, [&] { return decode_block(ctx, batch, chain, n_rows, ids, confidence); });
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
