// The Markov chain of a block draft, exact, without reading all of W2 for every position: of a token seen before, the
// largest biases and a bound of all others are known, and few rows can still win.
#include "chain.h"

#include "ggml.h"
#include "guard.h"
#include "llama-ext.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define LS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LS_CLONES
#endif
#if defined(_MSC_VER)
#define LS_INLINE __forceinline
#else
#define LS_INLINE inline __attribute__((always_inline))
#endif

namespace {

constexpr int lanes = 16;       // sums side by side, for the compiler to vectorise without reordering them
constexpr int chunk = 64;       // rows that are looked at together
constexpr int listed = 64;      // largest biases that are kept of a token
constexpr int64_t worth_threads = 1 << 20;
constexpr float lowest = -std::numeric_limits<float>::infinity();

struct q8_block {
    uint16_t scale;
    int8_t q[32];
};

LS_INLINE float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// Of finite numbers.
LS_INLINE float half(uint16_t h) {
    const float size = from_bits((uint32_t) (h & 0x7fff) << 13) * 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &size, sizeof(bits));
    return from_bits(bits | (uint32_t) (h & 0x8000) << 16);
}

LS_INLINE float read(float x) { return x; }
LS_INLINE float read(ggml_bf16_t x) { return from_bits((uint32_t) x.bits << 16); }
LS_INLINE float read(uint16_t x) { return half(x); }

LS_INLINE float total(const float * sum) {
    float all = 0;
    for (int l = 0; l < lanes; ++l) {
        all += sum[l];
    }
    return all;
}

template <typename T> LS_INLINE void products(const T * w, int64_t first, int64_t last, const float * e, int n, float * out) {
    for (int64_t v = first; v < last; ++v) {
        const T * row = w + v * n;
        float sum[lanes] = {};
        int i = 0;
        for (; i + lanes <= n; i += lanes) {
            for (int l = 0; l < lanes; ++l) {
                sum[l] += read(row[i + l]) * e[i + l];
            }
        }
        for (; i < n; ++i) {
            sum[0] += read(row[i]) * e[i];
        }
        out[v - first] = total(sum);
    }
}

// Products of the rows first to last of W2 and e [n].
LS_CLONES void products_f32(const void * w, int64_t first, int64_t last, const float * e, int n, float * out) {
    products((const float *) w, first, last, e, n, out);
}

LS_CLONES void products_bf16(const void * w, int64_t first, int64_t last, const float * e, int n, float * out) {
    products((const ggml_bf16_t *) w, first, last, e, n, out);
}

LS_CLONES void products_f16(const void * w, int64_t first, int64_t last, const float * e, int n, float * out) {
    products((const uint16_t *) w, first, last, e, n, out);
}

LS_CLONES void products_q8_0(const void * w, int64_t first, int64_t last, const float * e, int n, float * out) {
    const int blocks = n / 32;
    for (int64_t v = first; v < last; ++v) {
        const q8_block * row = (const q8_block *) w + v * blocks;
        float sum[lanes] = {};
        for (int b = 0; b < blocks; ++b) {
            const float * x = e + b * 32;
            const float scale = half(row[b].scale);
            for (int l = 0; l < lanes; ++l) {
                sum[l] += scale * ((float) row[b].q[l] * x[l] + (float) row[b].q[lanes + l] * x[lanes + l]);
            }
        }
        out[v - first] = total(sum);
    }
}

// The first chunk from row `from` on with an x of at least `least` when `more` is added; n where there is none.
LS_CLONES int next_chunk(const float * x, int n, int from, float more, float least) {
    for (; from < n; from += chunk) {
        const int end = std::min(n, from + chunk);
        int any = 0;
        for (int i = from; i < end; ++i) {
            any |= x[i] + more >= least;
        }
        if (any) {
            return from;
        }
    }
    return n;
}

using Products = void (*)(const void *, int64_t, int64_t, const float *, int, float *);

Products products_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:  return products_f32;
        case GGML_TYPE_F16:  return products_f16;
        case GGML_TYPE_BF16: return products_bf16;
        case GGML_TYPE_Q8_0: return products_q8_0;
        default:             return nullptr;
    }
}

// Of one previous token: the rows with the largest biases, and what no other row's exceeds.
struct Known {
    float bound;
    int32_t row[listed];
    float bias[listed];
};

} // namespace

struct ls_chain {
    const char * w1 = nullptr;
    size_t w1_row = 0;
    ggml_to_float_t w1_read = nullptr; // none for float32
    const void * w2 = nullptr;
    Products multiply = nullptr;
    std::vector<float> confidence; // [width + rank]
    float confidence_bias = 0;
    std::vector<int32_t> d2t;
    int first = 0, rank = 0, rows = 0, threads = 1;
    size_t most_known = 0; // tokens, of half a KiB each

    std::vector<int32_t> place; // by token, into known; -1 where nothing is
    std::vector<Known> known;
    std::vector<float> bias;    // [rows], of what is looked at first

    int target_id(int row) const { return d2t.empty() ? row : d2t[(size_t) row]; }

    void embed(int token, float * e) const {
        const char * row = w1 + (size_t) token * w1_row;
        if (w1_read) {
            w1_read(row, e, rank);
        } else {
            std::memcpy(e, row, (size_t) rank * sizeof(float));
        }
    }

    // All biases after the token whose row of W1 is e.
    void look(const float * e) {
        const int parts = (int64_t) rows * rank >= worth_threads ? threads : 1;
#pragma omp parallel for num_threads(parts) if (parts > 1)
        for (int p = 0; p < parts; ++p) {
            const int64_t from = (int64_t) rows * p / parts, to = (int64_t) rows * (p + 1) / parts;
            multiply(w2, from, to, e, rank, bias.data() + from);
        }
    }

    // Before so many more are learnt, which have to stay together.
    void make_room(size_t more) {
        if (known.size() + more > most_known) {
            known.clear();
            std::fill(place.begin(), place.end(), -1);
        }
    }

    void learn(int token, const float * e) {
        look(e);
        Known found;
        // a heap of the largest, the smallest of them on top; one more than are listed, which is the bound
        std::vector<std::pair<float, int32_t>> top;
        const auto larger = std::greater<std::pair<float, int32_t>>();
        const size_t most = listed + 1;
        for (int c = 0; (c = next_chunk(bias.data(), rows, c, 0, top.size() < most ? lowest : top[0].first)) < rows; c += chunk) {
            for (int v = c; v < std::min(rows, c + chunk); ++v) {
                if (top.size() == most && !(bias[(size_t) v] > top[0].first)) {
                    continue;
                }
                if (top.size() == most) {
                    std::pop_heap(top.begin(), top.end(), larger);
                    top.pop_back();
                }
                top.emplace_back(bias[(size_t) v], v);
                std::push_heap(top.begin(), top.end(), larger);
            }
        }
        std::sort_heap(top.begin(), top.end(), larger);
        found.bound = top.size() == most ? top.back().first : lowest;
        for (int k = 0; k < listed; ++k) {
            const bool there = (size_t) k < std::min(top.size(), most - 1);
            found.row[k] = there ? top[(size_t) k].second : -1;
            found.bias[k] = there ? top[(size_t) k].first : lowest;
        }
        place[(size_t) token] = (int32_t) known.size();
        known.push_back(found);
    }

    // The first row with the largest sum of base logit and bias.
    int pick(const float * base, int token, const float * e) const {
        const Known & found = known[(size_t) place[(size_t) token]];
        float best = lowest;
        int at = -1;
        const auto see = [&](float sum, int row) {
            if (sum > best || (sum == best && row < at)) {
                best = sum;
                at = row;
            }
        };
        for (int k = 0; k < listed && found.row[k] >= 0; ++k) {
            see(base[found.row[k]] + found.bias[k], found.row[k]);
        }
        if (found.bound == lowest) {
            return std::max(at, 0);
        }
        for (int c = 0; (c = next_chunk(base, rows, c, found.bound, best)) < rows; c += chunk) {
            for (int v = c; v < std::min(rows, c + chunk); ++v) {
                if (base[v] + found.bound >= best) {
                    float own;
                    multiply(w2, v, v + 1, e, rank, &own);
                    see(base[v] + own, v);
                }
            }
        }
        return std::max(at, 0);
    }

    // The same with noise, in target vocabulary; logits become base + bias in target vocabulary.
    int draw(float * logits, size_t n_vocab, const float * noise, const float * e) {
        std::vector<float> sums((size_t) rows);
        look(e);
        float best = lowest;
        int at = 0;
        for (int v = 0; v < rows; ++v) {
            sums[(size_t) v] = logits[v] + bias[(size_t) v];
            const float x = sums[(size_t) v] + noise[target_id(v)];
            if (x > best) {
                best = x;
                at = v;
            }
        }
        spread(sums, logits, n_vocab);
        return at;
    }

    void spread(const std::vector<float> & sums, float * logits, size_t n_vocab) const {
        std::fill(logits, logits + n_vocab, lowest);
        for (int v = 0; v < rows; ++v) {
            logits[target_id(v)] = sums[(size_t) v];
        }
    }

    float sure(const float * hidden, const float * e) const {
        float score = confidence_bias;
        const size_t width = confidence.size() - (size_t) rank;
        for (size_t i = 0; i < width; ++i) {
            score += confidence[i] * hidden[i];
        }
        for (size_t i = 0; i < (size_t) rank; ++i) {
            score += confidence[width + i] * e[i];
        }
        return 1.0f / (1.0f + std::exp(-score));
    }
};

ls_chain * ls_chain_new(const ls_head * head, int threads, int n_known) {
    return guarded((ls_chain *) nullptr, [&]() -> ls_chain * {
        auto chain = std::make_unique<ls_chain>();
        const ggml_type w1_type = (ggml_type) head->w1_type;
        chain->multiply = products_of((ggml_type) head->w2_type);
        chain->w1_read = ggml_get_type_traits(w1_type)->to_float;
        if (!chain->multiply || (!chain->w1_read && w1_type != GGML_TYPE_F32)) {
            fail("the Markov head is of a type that only the graph computes");
            return nullptr;
        }
        if (w1_type == GGML_TYPE_F32) {
            chain->w1_read = nullptr;
        }
        chain->w1 = (const char *) head->w1;
        chain->w2 = head->w2;
        chain->rank = head->rank;
        chain->rows = head->n_draft;
        chain->w1_row = ggml_row_size(w1_type, head->rank);
        chain->first = head->first;
        chain->threads = std::max(1, threads);
        chain->most_known = (size_t) std::max(0, n_known);
        if (head->confidence) {
            chain->confidence.assign(head->confidence, head->confidence + head->width + head->rank);
            chain->confidence_bias = head->confidence_bias;
        }
        if (head->d2t) {
            chain->d2t.assign(head->d2t, head->d2t + head->n_draft);
        }
        chain->place.assign((size_t) head->n_tokens, -1);
        chain->bias.resize((size_t) chain->rows);
        // growing would copy, and leave holes; memory that is not used is not taken
        chain->known.reserve(std::min(chain->place.size(), chain->most_known));
        return chain.release();
    });
}

void ls_chain_free(ls_chain * chain) {
    delete chain;
}

int chain_blocks(ls_chain * chain, llama_context * ctx, const ls_batch * batch, const float * noise, int32_t * ids,
                 float * confidence) {
    float * logits = llama_get_logits(ctx);
    const float * hidden = llama_get_embeddings_nextn(ctx);
    if (!logits || !hidden) {
        return fail("the draft gave no base logits");
    }
    if (confidence && chain->confidence.empty()) {
        return fail("the draft gives no confidences");
    }
    const llama_model * model = llama_get_model(ctx);
    const size_t n_vocab = (size_t) llama_vocab_n_tokens(llama_model_get_vocab(model));
    const size_t width = (size_t) llama_model_n_embd_out(model), rank = (size_t) chain->rank;
    if ((size_t) chain->rows > n_vocab || (confidence && chain->confidence.size() != width + rank)) {
        return fail("the Markov head is not this draft's");
    }

    // rows of each sequence in their order, wherever they lie
    std::vector<std::vector<int>> blocks;
    std::unordered_map<int, size_t> block_of;
    size_t longest = 0;
    for (int i = 0; i < batch->size; ++i) {
        const auto [at, fresh] = block_of.try_emplace(batch->seq[i], blocks.size());
        if (fresh) {
            blocks.emplace_back();
        }
        blocks[at->second].push_back(i);
        longest = std::max(longest, blocks[at->second].size());
    }
    std::vector<int> before;
    for (const auto & block : blocks) {
        before.push_back(batch->token[block[0]]);
    }
    for (size_t slot = 0; slot < (size_t) chain->first; ++slot) {
        for (const auto & block : blocks) {
            if (slot < block.size()) {
                const int row = block[slot];
                float * own = logits + (size_t) row * n_vocab;
                ids[row] = 0;
                if (confidence) {
                    confidence[row] = 0;
                }
                if (noise) {
                    chain->spread(std::vector<float>(own, own + chain->rows), own, n_vocab);
                }
            }
        }
    }

    const int n_blocks = (int) blocks.size();
    std::vector<float> embedded((size_t) n_blocks * rank);
    for (size_t slot = (size_t) chain->first; slot < longest; ++slot) {
        chain->make_room((size_t) n_blocks);
        for (int b = 0; b < n_blocks; ++b) {
            const int token = before[(size_t) b];
            if (slot >= blocks[(size_t) b].size()) {
                continue;
            }
            if (token < 0 || (size_t) token >= chain->place.size()) {
                return fail("a token outside the Markov head's vocabulary");
            }
            chain->embed(token, embedded.data() + (size_t) b * rank);
            if (!noise && chain->place[(size_t) token] < 0) {
                chain->learn(token, embedded.data() + (size_t) b * rank);
            }
        }
        const int parts = !noise && (int64_t) n_blocks * chain->rows >= worth_threads / 4 ? std::min(chain->threads, n_blocks) : 1;
#pragma omp parallel for num_threads(parts) if (parts > 1)
        for (int b = 0; b < n_blocks; ++b) {
            const auto & block = blocks[(size_t) b];
            if (slot >= block.size()) {
                continue;
            }
            const size_t row = (size_t) block[slot];
            const float * e = embedded.data() + (size_t) b * rank;
            float * own = logits + row * n_vocab;
            const int chosen = noise ? chain->draw(own, n_vocab, noise + row * n_vocab, e) : chain->pick(own, before[(size_t) b], e);
            ids[row] = before[(size_t) b] = chain->target_id(chosen);
            if (confidence) {
                confidence[row] = chain->sure(hidden + row * width, e);
            }
        }
    }
    return 0;
}
