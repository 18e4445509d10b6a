// llama.cpp's samplers in the order of its common_sampler, with what a library needs around them: tokens that are
// excluded leave the candidates, an empty choice is an error, and a token of the text is drawn once only.
#include "guard.h"
#include "linkage.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace {

struct Free {
    void operator()(llama_sampler * sampler) const { llama_sampler_free(sampler); }
};
using Owned = std::unique_ptr<llama_sampler, Free>;

const float * logits_of(llama_context * ctx, int row) {
    const float * logits = llama_get_logits_ith(ctx, row);
    if (!logits) {
        throw std::runtime_error("the row has no logits");
    }
    return logits;
}

int vocab_size(const llama_context * ctx) {
    return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
}

} // namespace

struct ls_sampler {
    Owned grammar, bias, chain;
    const llama_vocab * vocab = nullptr;
    std::vector<llama_token_data> candidates, likely;
    std::vector<llama_token> drawn;
    bool greedy = false;

    void load(llama_context * ctx, int row) {
        const float * logits = logits_of(ctx, row);
        candidates.resize((size_t) vocab_size(ctx));
        bool numbers = true;
        for (size_t i = 0; i < candidates.size(); ++i) {
            candidates[i] = { (llama_token) i, logits[i], 0.0f };
            numbers = numbers && !std::isnan(logits[i]);
        }
        if (!numbers) {
            throw std::runtime_error("the target's logits are not numbers");
        }
    }

    llama_token_data_array view() { return { candidates.data(), candidates.size(), -1, false }; }

    // What the chain leaves of a row's candidates, one of them selected.
    llama_token_data_array sift(llama_context * ctx, int row, llama_sampler * mask, llama_sampler * samplers) {
        load(ctx, row);
        llama_token_data_array all = view();
        llama_sampler_apply(bias.get(), &all);
        if (mask) {
            llama_sampler_apply(mask, &all);
        }
        // samplers further on would count excluded tokens in, or divide by their probability of zero
        const auto excluded = [](const llama_token_data & token) { return token.logit == -INFINITY; };
        candidates.erase(std::remove_if(candidates.begin(), candidates.end(), excluded), candidates.end());
        if (candidates.empty()) {
            throw std::runtime_error(mask ? "no token of the vocabulary can continue the text within the grammar"
                                          : "every token of the vocabulary is excluded");
        }
        llama_token_data_array left = view();
        llama_sampler_apply(samplers, &left);
        if (left.selected < 0 || (size_t) left.selected >= left.size) {
            throw std::runtime_error("the samplers have chosen no token");
        }
        return left;
    }

    llama_token choose(llama_context * ctx, int row, llama_sampler * mask) {
        const llama_token_data_array left = sift(ctx, row, mask, chain.get());
        return left.data[left.selected].id;
    }

    bool fits_grammar(llama_token id) {
        llama_token_data single = { id, 1.0f, 0.0f };
        llama_token_data_array one = { &single, 1, -1, false };
        llama_sampler_apply(grammar.get(), &one);
        return single.logit != -INFINITY;
    }

    llama_token draw(llama_context * ctx, int row) {
        // as common_sampler does: to mask the whole vocabulary is slow and rarely needed
        llama_token id = choose(ctx, row, nullptr);
        if (grammar && !fits_grammar(id)) {
            id = choose(ctx, row, grammar.get());
        }
        take(id);
        return id;
    }

    void take(llama_token id) {
        drawn.reserve(drawn.size() + 1);
        llama_sampler_accept(grammar.get(), id);
        llama_sampler_accept(chain.get(), id);
        drawn.push_back(id);
    }

    // The distribution of a draw from a row, odds [vocabulary]: u of the first draw for what fits the grammar, and for
    // the rest of it, which is drawn again, that of the masked one.
    void weigh(llama_context * ctx, int row, llama_sampler * mask, llama_sampler * samplers, float * odds) {
        std::fill(odds, odds + vocab_size(ctx), 0.0f);
        read_odds(sift(ctx, row, nullptr, samplers));
        double again = 0.0;
        if (mask) {
            llama_token_data_array all = { likely.data(), likely.size(), -1, false };
            llama_sampler_apply(mask, &all);
        }
        for (const llama_token_data & token : likely) {
            if (token.logit == -INFINITY) {
                again += token.p;
            } else {
                odds[token.id] = token.p;
            }
        }
        if (again > 0.0) {
            read_odds(sift(ctx, row, mask, samplers));
            for (const llama_token_data & token : likely) {
                odds[token.id] += (float) (again * token.p);
            }
        }
    }

    void read_odds(const llama_token_data_array & left) {
        likely.clear();
        for (size_t i = 0; i < left.size; ++i) {
            const float p = greedy ? (float) (i == (size_t) left.selected) : left.data[i].p;
            if (p > 0.0f) {
                likely.push_back({ left.data[i].id, 1.0f, p });
            }
        }
    }

    // Rows of odds from the token at `index` on, while ids are what the text goes on with.
    int odds_along(llama_context * ctx, int row, const int32_t * ids, int n_ids, int index, float * odds) {
        const Owned mask(grammar ? llama_sampler_clone(grammar.get()) : nullptr);
        const Owned samplers(llama_sampler_clone(chain.get()));
        const size_t n_vocab = (size_t) vocab_size(ctx);
        for (int i = 0; i <= n_ids; ++i, odds += n_vocab) {
            const size_t at = (size_t) index + (size_t) i;
            if (at < drawn.size()) {
                std::fill(odds, odds + n_vocab, 0.0f);
                odds[drawn[at]] = 1.0f;
            } else {
                try {
                    weigh(ctx, row + i, mask.get(), samplers.get(), odds);
                } catch (const std::runtime_error &) {
                    if (i == 0) {
                        throw;
                    }
                    return i; // whether the text gets there is not said
                }
            }
            if (i == n_ids || !(odds[ids[i]] > 0.0f) || llama_vocab_is_eog(vocab, ids[i])) {
                return i + 1;
            }
            if (at >= drawn.size()) {
                llama_sampler_accept(mask.get(), ids[i]);
                llama_sampler_accept(samplers.get(), ids[i]);
            }
        }
        return n_ids + 1;
    }

    void add(llama_sampler * sampler) { llama_sampler_chain_add(chain.get(), sampler); }
};

namespace {

std::vector<llama_logit_bias> biases(const llama_vocab * vocab, const ls_sampling * options) {
    std::vector<llama_logit_bias> found;
    for (int i = 0; i < options->n_bias; ++i) {
        found.push_back({ options->bias_ids[i], options->bias[i] });
    }
    int32_t n = 0;
    const llama_token * suppressed = llama_vocab_get_suppress_tokens(vocab, &n);
    for (int i = 0; i < n; ++i) {
        found.push_back({ suppressed[i], -INFINITY });
    }
    return found;
}

} // namespace

ls_sampler * ls_sampler_new(const llama_model * model, const ls_sampling * options) {
    return guarded((ls_sampler *) nullptr, [&]() -> ls_sampler * {
        const llama_vocab * vocab = llama_model_get_vocab(model);
        const int n_vocab = llama_vocab_n_tokens(vocab);
        auto made = std::make_unique<ls_sampler>();
        made->vocab = vocab;
        made->greedy = !(options->temperature > 0);
        if (options->grammar) {
            made->grammar.reset(llama_sampler_init_grammar(vocab, options->grammar, "root"));
            if (!made->grammar) {
                return nullptr;
            }
        }
        const std::vector<llama_logit_bias> bias = biases(vocab, options);
        made->bias.reset(llama_sampler_init_logit_bias(n_vocab, (int32_t) bias.size(), bias.data()));
        llama_sampler_chain_params params = llama_sampler_chain_default_params();
        params.no_perf = true;
        made->chain.reset(llama_sampler_chain_init(params));
        made->add(llama_sampler_init_penalties(n_vocab, options->repeat_last_n, options->repeat_penalty,
                                               options->frequency_penalty, options->presence_penalty));
        made->add(llama_sampler_init_dry(vocab, options->dry_multiplier, options->dry_base, options->dry_allowed_length,
                                         options->dry_last_n, options->dry_breakers, (size_t) options->n_dry_breakers));
        made->add(llama_sampler_init_top_k(options->top_k));
        made->add(llama_sampler_init_typical(options->typical_p, 0));
        made->add(llama_sampler_init_top_p(options->top_p, 0));
        made->add(llama_sampler_init_min_p(options->min_p, 0));
        if (options->temperature > 0) {
            made->add(llama_sampler_init_temp(options->temperature));
            made->add(llama_sampler_init_dist(options->seed));
        } else {
            made->add(llama_sampler_init_greedy());
        }
        return made.release();
    });
}

void ls_sampler_free(ls_sampler * sampler) {
    delete sampler;
}

int ls_sampler_prompt(ls_sampler * sampler, const int32_t * ids, int n) {
    return guarded(-1, [&] {
        for (int i = 0; i < n; ++i) {
            llama_sampler_accept(sampler->chain.get(), ids[i]);
        }
        return 0;
    });
}

int ls_sampler_draw(ls_sampler * sampler, llama_context * ctx, int row, int index) {
    return guarded(-1, [&] {
        const int known = (int) sampler->drawn.size();
        if (index < 0 || index > known) {
            return fail("tokens of a text are drawn in order");
        }
        return index < known ? (int) sampler->drawn[(size_t) index] : (int) sampler->draw(ctx, row);
    });
}

int ls_sampler_take(ls_sampler * sampler, int32_t token, int index) {
    return guarded(-1, [&] {
        const int known = (int) sampler->drawn.size();
        if (index < 0 || index > known) {
            return fail("tokens of a text are drawn in order");
        }
        if (index < known) {
            return 0;
        }
        if (token < 0 || token >= llama_vocab_n_tokens(sampler->vocab)) {
            return fail("a token outside the vocabulary");
        }
        if (sampler->grammar && !sampler->fits_grammar(token)) {
            return fail("the grammar does not allow it");
        }
        sampler->take(token);
        return 0;
    });
}

int ls_sampler_odds(ls_sampler * sampler, llama_context * ctx, int row, const int32_t * ids, int n_ids, int index, float * odds) {
    return guarded(-1, [&] {
        if (index < 0 || (size_t) index > sampler->drawn.size()) {
            return fail("tokens of a text are drawn in order");
        }
        for (int i = 0; i < n_ids; ++i) {
            if (ids[i] < 0 || ids[i] >= vocab_size(ctx)) {
                return fail("a token outside the vocabulary");
            }
        }
        return sampler->odds_along(ctx, row, ids, n_ids, index, odds);
    });
}

int ls_logprobs(llama_context * ctx, const int32_t * rows, const int32_t * ids, int n, int n_top, float * logprob,
                int32_t * top_ids, float * top_logprob) {
    return guarded(-1, [&] {
        const int n_vocab = vocab_size(ctx);
        std::vector<int32_t> order((size_t) n_vocab);
        for (int i = 0; i < n; ++i) {
            const float * x = logits_of(ctx, rows[i]);
            const float most = *std::max_element(x, x + n_vocab);
            double sum = 0.0;
            for (int j = 0; j < n_vocab; ++j) {
                sum += std::exp((double) x[j] - most);
            }
            if (std::isnan(sum)) {
                return fail("the target's logits are not numbers");
            }
            const double norm = most + std::log(sum);
            logprob[i] = (float) (x[ids[i]] - norm);
            std::iota(order.begin(), order.end(), 0);
            const auto likelier = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
            std::partial_sort(order.begin(), order.begin() + n_top, order.end(), likelier);
            for (int k = 0; k < n_top; ++k) {
                top_ids[(size_t) i * n_top + k] = order[(size_t) k];
                top_logprob[(size_t) i * n_top + k] = (float) (x[order[(size_t) k]] - norm);
            }
        }
        return 0;
    });
}
