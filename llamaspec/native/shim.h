/* The only declaration of the shim, kept to what cffi's parser reads: shim.cpp includes it, and it is also the cdef.
   A function that returns int gives 0 on success and a negative code on failure, with the reason in ls_last_error(). */

const char * ls_build_info(void);
const char * ls_last_error(void);

/* Load the backends found in dir. Returns the number of devices. */
int ls_load_backends(const char * dir);

/* Servers of llama.cpp's RPC backend, as "host:port". Add one, which is asked for its devices, at most n: returns how many
   it has, 0 where it cannot be reached, negative where this build has no such backend. No device is registered with ggml. */
int ls_rpc_add(const char * endpoint, ggml_backend_dev_t * devices, int n);

/* How many connections to one were lost, or could not be made, until now; open: whether one is in use. */
unsigned ls_rpc_lost(const char * endpoint, int * open);

/* Log lines are kept in a bounded queue from which Python drains. level: ggml_log_level. */
void ls_log_install(int min_level);
int ls_log_next(int * level, char * text, int size);

/* NULL on failure. */
struct llama_model * ls_model_load(const char * path, const struct llama_model_params * params);
struct llama_context * ls_context_new(struct llama_model * model, const struct llama_context_params * params);

/* The same without weights and without a vocabulary of more than n_vocab empty tokens: for contexts that take no memory and
   cannot compute, but tell what they would take. size_key: the architecture's vocab_size. */
struct llama_model * ls_model_plan(const char * path, const struct llama_model_params * params, const char * size_key,
                                   int n_vocab);

/* Bytes on one device: what of a context and its model is there, or, of a model without allocation, would be. */
struct ls_memory {
    char device[64];
    uint64_t weights;
    uint64_t cache;
    uint64_t compute;
};

/* By device, at most `size` of them; what the CPU can read is the CPU's. Returns how many there are. */
int ls_memory_of(struct llama_context * ctx, struct ls_memory * parts, int size);

/* Nodes that each of its graphs of n_rows rows has room for. */
int ls_graph_nodes(struct llama_context * ctx, int n_rows);

/* String metadata; returns the length, -1 where the key is absent. */
int ls_model_meta(const struct llama_model * model, const char * key, char * text, int size);

/* Rows for one decode: token ids, or embeddings of the given width where it is not 0. pos has room for four planes. */
struct ls_batch {
    int32_t capacity;
    int32_t width;
    int32_t size;
    int32_t * token;
    float * embd;
    int32_t * pos;
    int32_t * seq;
    int8_t * output;
};

struct ls_batch * ls_batch_new(int capacity, int width);
void ls_batch_free(struct ls_batch * batch);

/* Append n token rows of one sequence at positions start, start + 1, ...; output: 0 of none, 1 of all, 2 of the last is
   wanted. Returns the first row's index, negative where they do not fit. */
int ls_batch_add(struct ls_batch * batch, const int32_t * token, int n, int start, int seq, int output);

/* Replace the content by n embedding rows [n, width]; no output is wanted of them. */
int ls_batch_set_embd(struct ls_batch * batch, const float * rows, int n, const int32_t * pos, const int32_t * seq);

int ls_decode(struct llama_context * ctx, struct ls_batch * batch);

/* Decode, then the largest logit's index of every output row: ids [n_rows]; with taps also the features of the batch's
   first n_rows rows: [n_rows, n_taps * width]. */
int ls_decode_choose(struct llama_context * ctx, struct ls_batch * batch, int n_rows, int32_t * ids, const int32_t * taps,
                     int n_taps, float * features);

/* Decode the rows of a batch, each of a sequence of its own, then the greedy choices after them, and so on: up to n passes,
   until one of ends [n_ends] is chosen or `seconds` have gone. ids [n, rows] and, with taps, the rows' features
   [n, rows, n_taps * width] are filled, count says how many passes; a failure after the first one only ends the run. */
int ls_decode_run(struct llama_context * ctx, struct ls_batch * batch, int n, double seconds, const int32_t * ends,
                  int n_ends, const int32_t * taps, int n_taps, float * features, int32_t * ids, int32_t * count);

/* A vanilla Markov head: W1 [n_tokens, rank] and W2 [n_draft, rank] as a file holds them, of ggml's types, and the confidence
   head's weights [width + rank], NULL without one. d2t [n_draft]: target ids of the draft's rows, NULL for a full vocabulary.
   first: the slot of a block's first proposal. */
struct ls_head {
    const void * w1;
    const void * w2;
    int32_t w1_type;
    int32_t w2_type;
    int32_t n_tokens;
    int32_t n_draft;
    int32_t rank;
    int32_t width;
    const float * confidence;
    float confidence_bias;
    const int32_t * d2t;
    int32_t first;
};

/* Computes a head on the CPU. W1 and W2 have to outlive it, the rest is copied. n_known: tokens of which the largest biases
   are remembered, at half a KiB each; beyond, all are forgotten. NULL where a type cannot be read, with the reason in
   ls_last_error(). */
struct ls_chain * ls_chain_new(const struct ls_head * head, int threads, int n_known);
void ls_chain_free(struct ls_chain * chain);

/* As ls_decode_choose for a draft's blocks, with the confidences [n_rows], NULL where there are none; then drop the blocks' K/V.
   chain: chooses in place of the graph, which gives base logits then (LS_BASE), of all rows; NULL for the graph. */
int ls_decode_block(struct llama_context * ctx, struct ls_batch * batch, struct ls_chain * chain, int n_rows, int32_t * ids,
                    float * confidence);

/* The same with noise [rows, vocabulary] (0 where none is wanted), added to the logits before every choice: in the
   graph, where rows depend on choices before. Of all rows, each put out, ids are the choices where `drawn` [rows] is
   not 0, the largest logits otherwise. Logits stay without noise. */
int ls_decode_drawn(struct llama_context * ctx, struct ls_batch * batch, struct ls_chain * chain, const float * noise,
                    const int8_t * drawn, int32_t * ids, float * confidence);

/* How many proposals of a block to verify: as many as give most tokens - rate * seconds. prices [1 + most rows]: seconds of a
   target pass over so many. rates: P(accepted | all before accepted) by position, NULL where confidences c say it:
   sigmoid(f(logit(c))), f linear between knots at, values [n_knots]. With temperatures [n_temperatures], by position, c is
   first made of survivals as a calibration file has them: with levels, of position i the knots level_starts[i] to
   level_starts[i + 1]. least: the fewest that are verified. */
struct ls_rule {
    double rate;
    int32_t least;
    const double * prices;
    const double * rates;
    const double * at;
    const double * values;
    int32_t n_knots;
    int32_t n_temperatures;
    const double * temperatures;
    const int32_t * level_starts;
    const double * level_at;
    const double * level_values;
};

/* Of a block's first `limit` proposals; worth [limit + 1] of every number. confidence may be NULL where rates are not. */
int ls_choose_width(const struct ls_rule * rule, const float * confidence, int limit, double * worth);

/* Rounds of one sequence in a row. Batches: memory for a block, an injection and a verify pass. width: proposals of the first
   block; whole: of one after a block that was accepted whole; usual: of the others. A block begins with `first` slots that
   propose nothing; places: the most proposals. taps [n_taps]; features: memory for the rows of a pass; ends [n_ends].
   rule: NULL verifies all. anchor, position, left (most tokens that can follow) move on with the rounds: at most `most`, until
   an end is chosen, one token is left, `seconds` have gone, or nothing was accepted of so many in a row: fruitless.
   By round, count of them: ids and, unless NULL, confidence [most, places], with a rule worth [most, places + 1], what was
   drafted, verified and accepted, the target's own token after that, seconds of drafting and verifying. At the end the draft has
   learnt so many positions, and features are waiting of those after them. */
struct ls_rounds {
    struct ls_chain * chain;
    struct ls_batch * block;
    struct ls_batch * inject;
    struct ls_batch * verify;
    int32_t seq;
    int32_t first;
    int32_t mask;
    int32_t width;
    int32_t usual;
    int32_t whole;
    int32_t places;
    const int32_t * taps;
    int32_t n_taps;
    float * features;
    const int32_t * ends;
    int32_t n_ends;
    const struct ls_rule * rule;
    int32_t anchor;
    int32_t position;
    int32_t left;
    int32_t most;
    int32_t fruitless;
    double seconds;
    int32_t count;
    int32_t * ids;
    float * confidence;
    double * worth;
    int32_t * drafted;
    int32_t * verified;
    int32_t * accepted;
    int32_t * bonus;
    double * draft_s;
    double * verify_s;
    int32_t learnt;
    int32_t waiting;
    int32_t failed;
};

/* The draft knows the features of all positions below the first but for the last `waiting`, whose rows are in features. A failure
   after the first round only ends the run, as `failed` says; where the first fails, its code is returned, and the target holds
   what it held. */
int ls_draft_rounds(struct llama_context * target, struct llama_context * draft, struct ls_rounds * rounds);

/* Target side: whether the graph gives the input of a layer as n_embd floats of every token; 1 or 0, negative on failure.
   To be asked before ls_set_taps: llama.cpp aborts where a graph lacks what was set. */
int ls_has_layer_input(struct llama_context * ctx, int layer);

/* The same for blocks of a draft that gives a lattice: rows of k candidates, then k scores for every candidate of the row
   before. ids [batch size] along the best scores; that of a block's first row is 0. */
int ls_decode_lattice(struct llama_context * ctx, struct ls_batch * batch, int k, int32_t * ids);

/* Target side: which layer inputs to publish (or no longer), and their rows gathered as out [n_rows, n_taps * n_embd]. */
int ls_set_taps(struct llama_context * ctx, const int32_t * taps, int n_taps, int publish);
int ls_gather_features(struct llama_context * ctx, const int32_t * taps, int n_taps, const int32_t * rows, int n_rows,
                       float * out);

/* Target side: compute the rows of a verify pass, all of which are put out, as single rows are. */
void ls_set_rows_alike(struct llama_context * ctx, int wanted);

/* Keep the graphs of the last n_graphs different passes of at most n_rows rows, to be computed again; 0: only the last. */
int ls_keep_graphs(struct llama_context * ctx, int n_graphs, int n_rows);

/* How many passes did not have to build their graph. */
int ls_graphs_reused(struct llama_context * ctx);

/* Draft side. What rows give beside logits: nothing, confidences, a selector's lattice (of all rows, output or not), or, with
   logits without the head, in draft-vocabulary order, the hidden rows. */
enum { LS_LOGITS, LS_CONFIDENCE, LS_LATTICE, LS_BASE };
int ls_draft_setup(struct llama_context * ctx, int causal, int rows);
const float * ls_hidden(struct llama_context * ctx);

/* The two largest logits of the first n_rows output rows: index of the first, ids [n_rows], and gap [n_rows] between. */
int ls_top2(struct llama_context * ctx, int n_rows, int32_t * ids, float * gap);

/* How to draw tokens: llama.cpp's samplers and their values. bias_ids, bias [n_bias]; dry_breakers [n_dry_breakers];
   grammar: GBNF with a rule "root", NULL for none. A temperature of 0 takes the likeliest of what is left. */
struct ls_sampling {
    uint32_t seed;
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
    float typical_p;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    int32_t repeat_last_n;
    float dry_multiplier;
    float dry_base;
    int32_t dry_allowed_length;
    int32_t dry_last_n;
    const char ** dry_breakers;
    int32_t n_dry_breakers;
    const int32_t * bias_ids;
    const float * bias;
    int32_t n_bias;
    const char * grammar;
};

/* NULL on failure; a grammar's fault is in the log. */
struct ls_sampler * ls_sampler_new(const struct llama_model * model, const struct ls_sampling * options);
void ls_sampler_free(struct ls_sampler * sampler);

/* Let the prompt count for penalties. */
int ls_sampler_prompt(struct ls_sampler * sampler, const int32_t * ids, int n);

/* The token at `index` of the text, from an output row of the last decode. It is drawn once: asked again, as after an
   interruption, it is what it was. Returns it, negative on failure. */
int ls_sampler_draw(struct ls_sampler * sampler, struct llama_context * ctx, int row, int index);

/* The token at `index` was decided otherwise: it counts as drawn, without a random number. Nothing happens where the
   token there is known. */
int ls_sampler_take(struct ls_sampler * sampler, int32_t token, int index);

/* The distribution that ls_sampler_draw would draw the token at `index` from, then those of the next tokens and rows
   with ids [n_ids] as the tokens before: odds [n_ids + 1, vocabulary]; the sampler stays as it is. Of a token that is
   known all odds are on it. Returns the number of rows, negative on failure; fewer than n_ids + 1 where an id has no
   odds or ends the text, whose row is the last, or where nothing can follow. */
int ls_sampler_odds(struct ls_sampler * sampler, struct llama_context * ctx, int row, const int32_t * ids, int n_ids,
                    int index, float * odds);

/* A JSON schema as GBNF, valid until the next call of this thread; NULL on failure. */
const char * ls_schema_to_grammar(const char * schema);

/* Of n output rows: the log-probability of the given token, logprob [n], and the n_top likeliest tokens with theirs,
   top_ids and top_logprob [n, n_top], all of the softmax of the logits as they are. */
int ls_logprobs(struct llama_context * ctx, const int32_t * rows, const int32_t * ids, int n, int n_top, float * logprob,
                int32_t * top_ids, float * top_logprob);

/* Text <-> ids. Returns the length, or minus the length that would be needed. */
int ls_tokenize(const struct llama_vocab * vocab, const char * text, int length, int32_t * ids, int size, int add_special,
                int parse_special);
int ls_token_piece(const struct llama_vocab * vocab, int32_t id, char * text, int size, int special);
