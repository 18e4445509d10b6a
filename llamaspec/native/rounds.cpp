// Drafted greedy rounds of one sequence in a row. What the loop in Python does between passes is done here where a
// round of a small target would take that long again.
#include "decode.h"
#include "guard.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace {

constexpr double least = 1e-6;
constexpr double farthest = 60;

double bounded(double x, double most) {
    return std::min(std::max(x, -most), most);
}

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

// A number that is none is the least.
double logit(double c) {
    c = std::min(c > least ? c : least, 1 - least);
    return std::log(c / (1 - c));
}

// A curve's value: linear between its knots, flat before the first and after the last.
double read_curve(const double * at, const double * value, int n, double x) {
    const int right = (int) (std::upper_bound(at, at + n, x) - at);
    if (right == 0 || right == n) {
        return value[right == 0 ? 0 : n - 1];
    }
    const double share = (x - at[right - 1]) / (at[right] - at[right - 1]);
    return value[right - 1] + share * (value[right] - value[right - 1]);
}

// P(accepted | all before accepted) of proposals, one after the other.
class Chances {
  public:
    explicit Chances(const ls_rule & rule) : rule(rule) {}

    double next(float confidence) {
        const int i = n++;
        if (rule.rates) {
            return rule.rates[i];
        }
        const double c = rule.n_temperatures > 0 ? scaled(i, confidence) : (double) confidence;
        return sigmoid(read_curve(rule.at, rule.values, rule.n_knots, logit(c)));
    }

  private:
    double scaled(int i, float confidence) {
        const double before = survival;
        const int last = rule.n_temperatures - 1;
        double a = before * sigmoid(bounded(logit(confidence) / rule.temperatures[std::min(i, last)], farthest));
        const int first = i > last ? 0 : rule.level_starts[i];
        const int knots = i > last ? 0 : rule.level_starts[i + 1] - first;
        if (knots > 0) {
            a = read_curve(rule.level_at + first, rule.level_values + first, knots, a);
        }
        survival = std::min(before, a);
        return survival / std::max(before, least);
    }

    const ls_rule & rule;
    double survival = 1;
    int n = 0;
};

// worth [limit + 1]: tokens - rate * seconds of every width.
int choose_width(const ls_rule & rule, const float * confidence, int limit, double * worth) {
    Chances chances(rule);
    double survival = 1, tokens = 1;
    worth[0] = 1 - rule.rate * rule.prices[1];
    int width = 0;
    for (int n = 1; n <= limit; ++n) {
        survival *= chances.next(confidence ? confidence[n - 1] : 0);
        tokens += survival;
        worth[n] = tokens - rule.rate * rule.prices[n + 1];
        if (worth[n] > worth[width] || n <= rule.least) {
            width = n;
        }
    }
    return width;
}

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
}

class Rounds {
  public:
    Rounds(llama_context * target, llama_context * draft, ls_rounds * r) :
        target(target), draft(draft), r(r), drafted(r->width), block_ids((size_t) (r->places + r->first)), scores(block_ids.size()) {}

    int run() {
        const auto began = clock::now();
        r->count = r->failed = 0;
        r->learnt = r->position - r->waiting;
        while (r->count < r->most && r->left > 1) {
            const int rc = round();
            if (rc != 0) {
                r->failed = 1;
                return r->count == 0 ? rc : 0;
            }
            const int accepted = r->accepted[r->count];
            fruitless = accepted > 0 ? 0 : fruitless + 1;
            drafted = accepted == drafted ? r->whole : r->usual;
            ++r->count;
            if (ended || fruitless >= r->fruitless || seconds_since(began) >= r->seconds) {
                return 0;
            }
        }
        return 0;
    }

  private:
    int round() {
        const auto began = clock::now();
        if (r->waiting > 0 && inject() != 0) {
            return -1;
        }
        int32_t * ids = r->ids + (size_t) r->count * r->places;
        float * confidence = r->confidence ? r->confidence + (size_t) r->count * r->places : nullptr;
        int rc = propose(ids, confidence);
        if (rc != 0) {
            return rc;
        }
        const int limit = std::min(drafted, r->left - 1);
        double * worth = r->worth + (size_t) r->count * (r->places + 1);
        const int width = r->rule ? choose_width(*r->rule, confidence, limit, worth) : limit;
        r->drafted[r->count] = drafted;
        r->draft_s[r->count] = seconds_since(began);
        return verify(ids, width);
    }

    int propose(int32_t * ids, float * confidence) {
        const int rows = drafted + r->first;
        r->block->size = 0;
        masks.assign((size_t) rows, r->mask);
        masks[0] = r->anchor;
        if (ls_batch_add(r->block, masks.data(), rows, r->position, r->seq, 1) < 0) {
            return -1;
        }
        const int rc = decode_block(draft, r->block, r->chain, rows, block_ids.data(), confidence ? scores.data() : nullptr);
        std::copy_n(block_ids.begin() + r->first, drafted, ids);
        if (confidence) {
            std::copy_n(scores.begin() + r->first, drafted, confidence);
        }
        return rc;
    }

    int verify(const int32_t * ids, int width) {
        const auto began = clock::now();
        r->verify->size = 0;
        if (ls_batch_add(r->verify, &r->anchor, 1, r->position, r->seq, 1) < 0 ||
            (width > 0 && ls_batch_add(r->verify, ids, width, r->position + 1, r->seq, 1) < 0)) {
            return -1;
        }
        choices.resize((size_t) width + 1);
        int rc = decode(target, r->verify);
        if (rc == 0) {
            rc = choose(target, width + 1, choices.data());
        }
        int k = 0;
        while (rc == 0 && k < width && choices[(size_t) k] == ids[k]) {
            ++k;
        }
        if (rc == 0) {
            rc = gather_first(target, r->taps, r->n_taps, k + 1, r->features);
        }
        const int kept = rc == 0 ? k + 1 : 0;
        if (kept <= width) {
            llama_memory_seq_rm(llama_get_memory(target), r->seq, r->position + kept, -1);
        }
        if (rc != 0) {
            return rc;
        }
        commit(ids, width, k);
        r->verify_s[r->count] = seconds_since(began);
        return 0;
    }

    void commit(const int32_t * ids, int width, int k) {
        const int32_t bonus = choices[(size_t) k];
        const auto ends = [&](int32_t id) { return is_among(r->ends, r->n_ends, id); };
        ended = ends(bonus) || std::any_of(ids, ids + k, ends);
        r->verified[r->count] = width;
        r->accepted[r->count] = k;
        r->bonus[r->count] = bonus;
        r->waiting = k + 1;
        r->position += k + 1;
        r->left -= k + 1;
        r->anchor = bonus;
    }

    int inject() {
        const size_t n = (size_t) r->waiting;
        positions.resize(n);
        for (size_t i = 0; i < n; ++i) {
            positions[i] = r->learnt + (int32_t) i;
        }
        seqs.assign(n, r->seq);
        if (ls_batch_set_embd(r->inject, r->features, r->waiting, positions.data(), seqs.data()) != 0) {
            return -1;
        }
        const int rc = decode(draft, r->inject);
        if (rc == 0) {
            r->learnt = r->position;
            r->waiting = 0;
        }
        return rc;
    }

    llama_context * target;
    llama_context * draft;
    ls_rounds * r;
    bool ended = false;
    int fruitless = 0;
    int drafted; // proposals of the block
    std::vector<int32_t> block_ids;
    std::vector<float> scores;
    std::vector<int32_t> masks, choices, positions, seqs;
};

} // namespace

int ls_choose_width(const ls_rule * rule, const float * confidence, int limit, double * worth) {
    return choose_width(*rule, confidence, limit, worth);
}

int ls_draft_rounds(llama_context * target, llama_context * draft, ls_rounds * rounds) {
    return guarded(-1001, [&] { return Rounds(target, draft, rounds).run(); });
}
