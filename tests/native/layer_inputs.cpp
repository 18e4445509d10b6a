// A model of any architecture, made by asking llama.cpp's loader for its tensors, and the inputs of its layers as the
// evaluation callback sees them. Apart from the hook under test: what a layer's first weight reads is the layer's input.
#include "ggml-backend.h"
#include "gguf.h"
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string & what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::exit(1);
}

// Numbers that depend on nothing but the tensor's name and the place in it.
struct Numbers {
    uint64_t state = 1469598103934665603u;

    explicit Numbers(const char * name) {
        for (; *name; ++name) {
            state = (state ^ (uint8_t) *name) * 1099511628211u;
        }
    }

    // uniform in -1 to 1
    float next() {
        state += 0x9e3779b97f4a7c15u;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (float) ((double) ((z ^ (z >> 31)) >> 11) / 4503599627370496.0 - 1.0);
    }
};

struct Made {
    gguf_context * file;
    ggml_context * tensors;
};

void fill(ggml_tensor * tensor, void * data) {
    Made & made = *(Made *) data;
    if (tensor->type != GGML_TYPE_F32) {
        fail(std::string("not f32: ") + tensor->name);
    }
    const bool norm = std::strstr(tensor->name, "norm") || std::strstr(tensor->name, "rope_f");
    // what a recurrent state is multiplied with is the exponential of this, times something positive
    const char * last = std::strrchr(tensor->name, '.');
    const bool decay = last && std::strcmp(last, ".ssm_a") == 0;
    Numbers numbers(tensor->name);
    std::vector<float> values(ggml_nelements(tensor));
    for (float & value : values) {
        value = norm ? 1.0f + 0.3f * numbers.next() : 0.5f * numbers.next();
        value = decay ? -0.6f + value : value;
    }
    ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
    if (gguf_find_tensor(made.file, tensor->name) < 0) {
        ggml_tensor * copy = ggml_dup_tensor(made.tensors, tensor);
        ggml_set_name(copy, tensor->name);
        std::memcpy(copy->data, values.data(), ggml_nbytes(copy));
        gguf_add_tensor(made.file, copy);
    }
}

int make(const char * metadata, const char * out) {
    gguf_context * file = gguf_init_from_file(metadata, { true, nullptr });
    gguf_context * asked = gguf_init_from_file(metadata, { true, nullptr });
    Made made = { file, ggml_init({ (size_t) 64 << 20, nullptr, false }) };
    llama_model * model = llama_model_init_from_user(asked, fill, &made, llama_model_default_params());
    return model && gguf_write_to_file(file, out, false) ? 0 : 1;
}

struct Observed {
    std::map<const ggml_tensor *, std::vector<float>> norms; // what a norm reads, at the time
    std::map<int, std::vector<float>> inputs;                // by layer, and that of the head
    int64_t width = 0;
    int64_t rows = 0;
    int n_layer = 0;
};

// Row by row: the embedding may be a view of wider rows.
std::vector<float> values(const ggml_tensor * tensor) {
    std::vector<float> found(ggml_nelements(tensor));
    const size_t width = tensor->ne[0];
    for (size_t row = 0; row < found.size() / width; ++row) {
        ggml_backend_tensor_get(tensor, found.data() + row * width, row * tensor->nb[1], width * sizeof(float));
    }
    return found;
}

// -1 where the tensor is no weight of a layer; the head's weights count as those of a layer after the last
int layer_of(const ggml_tensor * tensor, const Observed & seen) {
    int layer = -1;
    const int n_layer = seen.n_layer;
    const char * name = tensor->name;
    // a norm of embeddings, which in lfm2 is that of the head
    if (std::strcmp(name, "token_embd_norm.weight") == 0 && seen.inputs.count(n_layer - 1)) {
        return n_layer;
    }
    if (std::strcmp(name, "output_norm.weight") == 0 || std::strcmp(name, "output.weight") == 0) {
        return n_layer;
    }
    return std::sscanf(name, "blk.%d.", &layer) == 1 ? layer : -1;
}

bool observe(ggml_tensor * tensor, bool ask, void * data) {
    if (!ask) {
        return true;
    }
    Observed & seen = *(Observed *) data;
    const auto is_state = [&](const ggml_tensor * x) {
        return x->type == GGML_TYPE_F32 && x->ne[0] == seen.width && x->ne[1] == seen.rows && ggml_is_matrix(x);
    };
    if ((tensor->op == GGML_OP_NORM || tensor->op == GGML_OP_RMS_NORM) && is_state(tensor->src[0])) {
        seen.norms[tensor] = values(tensor->src[0]);
        int layer = -1;
        // a norm without weights; and where layers share their weights, only its name says whose it is
        if (std::sscanf(tensor->name, "attn_norm-%d", &layer) == 1 && !seen.inputs.count(layer)) {
            seen.inputs[layer] = seen.norms[tensor];
        }
    }
    for (int i = 0; i < 2; ++i) {
        const ggml_tensor * weight = tensor->src[i];
        const ggml_tensor * state = tensor->src[1 - i];
        const int layer = weight && state ? layer_of(weight, seen) : -1;
        if (layer < 0 || seen.inputs.count(layer) || !is_state(state)) {
            continue;
        }
        if (state->op == GGML_OP_GET_ROWS && seen.norms.count(state->src[0])) {
            state = state->src[0]; // every row is selected here
        }
        const auto norm = seen.norms.find(state);
        seen.inputs[layer] = norm == seen.norms.end() ? values(state) : norm->second;
    }
    return true;
}

void decode(llama_context * ctx, std::vector<llama_token> ids, int start) {
    llama_batch batch = llama_batch_init((int) ids.size(), 0, 1);
    for (size_t i = 0; i < ids.size(); ++i) {
        batch.token[i] = ids[i];
        batch.pos[i] = start + (int) i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1; // no row leaves the last layer early
    }
    batch.n_tokens = (int) ids.size();
    if (llama_decode(ctx, batch) != 0) {
        fail("decode failed");
    }
    llama_batch_free(batch);
}

// Prompt and one more token; writes [n_layer + 1, rows, width] of each, then the last row's logits of each.
int watch(const char * path, const char * out, const char * tokens) {
    std::vector<llama_token> ids;
    for (const char * p = tokens; *p; p += *p == ',') {
        ids.push_back((llama_token) std::strtol(p, (char **) &p, 10));
    }
    llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) {
        return 1;
    }
    Observed seen;
    seen.width = llama_model_n_embd(model);
    seen.n_layer = llama_model_n_layer(model);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.kv_unified = params.swa_full = true;
    params.cb_eval = observe;
    params.cb_eval_user_data = &seen;
    llama_context * ctx = llama_init_from_model(model, params);
    FILE * file = ctx ? std::fopen(out, "wb") : nullptr;
    if (!file) {
        return 1;
    }
    const std::vector<std::vector<llama_token>> passes = { { ids.begin(), ids.end() - 1 }, { ids.back() } };
    for (const auto & pass : passes) {
        seen.rows = (int64_t) pass.size();
        seen.norms.clear();
        seen.inputs.clear();
        decode(ctx, pass, &pass == &passes[0] ? 0 : (int) passes[0].size());
        for (int layer = 0; layer <= seen.n_layer; ++layer) {
            const std::vector<float> & rows = seen.inputs[layer];
            if ((int64_t) rows.size() != seen.rows * seen.width) {
                fail("saw no input of layer " + std::to_string(layer));
            }
            std::fwrite(rows.data(), sizeof(float), rows.size(), file);
        }
    }
    std::fclose(file);
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 4) {
        fail("usage: layer_inputs BACKENDS make METADATA OUT | layer_inputs BACKENDS watch MODEL OUT TOKENS");
    }
    ggml_backend_load_all_from_path(argv[1]);
    return std::strcmp(argv[2], "make") == 0 ? make(argv[3], argv[4]) : watch(argv[3], argv[4], argv[5]);
}
