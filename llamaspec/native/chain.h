// A vanilla Markov head on the CPU: what decodes blocks uses it where there is one.
#pragma once

#include "linkage.h"

// Choices of the rows of a batch's blocks, from the base logits and hidden rows of the decode before: ids [rows], and
// confidence [rows] unless NULL. With noise [rows, vocabulary] choices are drawn, and logits become those of the whole
// vocabulary with the head's bias and without noise. Returns 0, or a negative code.
int chain_blocks(ls_chain * chain, llama_context * ctx, const ls_batch * batch, const float * noise, int32_t * ids,
                 float * confidence);
