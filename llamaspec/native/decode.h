// Decodes and what is read of their rows, without a guard against exceptions; 0 or a failure's code.
#pragma once

#include "linkage.h"

int vocab_size(llama_context * ctx);

// First index of the largest value.
int argmax(const float * x, int n);

int decode(llama_context * ctx, ls_batch * batch);

// The largest logits' indices of the last decode's first n_rows output rows.
int choose(llama_context * ctx, int n_rows, int32_t * ids);

// As ls_decode_block.
int decode_block(llama_context * ctx, ls_batch * batch, ls_chain * chain, int n_rows, int32_t * ids, float * confidence);

// The layer inputs that taps name of one row of the last decode, or of its first n_rows.
int gather(llama_context * ctx, const int32_t * taps, int n_taps, int row, float * out);
int gather_first(llama_context * ctx, const int32_t * taps, int n_taps, int n_rows, float * out);

bool is_among(const int32_t * ids, int n, int32_t id);
