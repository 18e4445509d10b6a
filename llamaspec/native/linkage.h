// shim.h, which cffi reads too and which therefore has no guard, for what includes it twice.
#pragma once

#include "llama.h"

extern "C" {
#include "shim.h"
}
