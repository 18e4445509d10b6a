#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml-backend.h"
#include "ggml-rpc.h"
#include "llama.h"
#include "shim.h"
