/* The only declaration of the shim, kept to what cffi's parser reads: shim.cpp includes it, and it is also the cdef.
   A function that returns int gives 0 on success and a negative code on failure, with the reason in ls_last_error(). */

const char * ls_build_info(void);
const char * ls_last_error(void);

/* Load the backends found in dir. Returns the number of devices. */
int ls_load_backends(const char * dir);

/* Log lines are kept in a bounded queue from which Python drains. level: ggml_log_level. */
void ls_log_install(int min_level);
int ls_log_next(int * level, char * text, int size);

/* NULL on failure. */
struct llama_model * ls_model_load(const char * path, const struct llama_model_params * params);
struct llama_context * ls_context_new(struct llama_model * model, const struct llama_context_params * params);

/* String metadata; returns the length, -1 where the key is absent. */
int ls_model_meta(const struct llama_model * model, const char * key, char * text, int size);

/* Decode n rows: token ids [n], or embeddings [n, width] with token NULL. seq [n]; output [n] marks rows wanted back. */
int ls_decode(struct llama_context * ctx, int n, const int32_t * token, const float * embd, const int32_t * pos,
              const int32_t * seq, const int8_t * output);

/* Target side: which layer inputs to publish (or no longer), and their rows gathered as out [n_rows, n_taps * n_embd]. */
int ls_set_taps(struct llama_context * ctx, const int32_t * taps, int n_taps, int publish);
int ls_gather_features(struct llama_context * ctx, const int32_t * taps, int n_taps, const int32_t * rows, int n_rows,
                       float * out);

/* Draft side. base: return logits without the Markov head, in draft-vocabulary order, and hidden rows. */
int ls_draft_setup(struct llama_context * ctx, int causal, int confidence, int base);
int ls_confidence(struct llama_context * ctx, int n_rows, float * out);
const float * ls_hidden(struct llama_context * ctx);

/* Reductions over the logits of output rows first..first+n_rows-1; ids [n_rows], gap [n_rows] = top1 - top2. */
int ls_argmax(struct llama_context * ctx, int first, int n_rows, int32_t * ids);
int ls_top2(struct llama_context * ctx, int first, int n_rows, int32_t * ids, float * gap);

/* Text <-> ids. Returns the length, or minus the length that would be needed. */
int ls_tokenize(const struct llama_vocab * vocab, const char * text, int length, int32_t * ids, int size, int add_special,
                int parse_special);
int ls_token_piece(const struct llama_vocab * vocab, int32_t id, char * text, int size, int special);
