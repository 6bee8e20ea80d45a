// SPDX-License-Identifier: Apache-2.0
// libFuzzer harness for the readers of external files (targets.h). TESSERA_FUZZ selects one.
// Build and run: fuzz/run.sh.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuzz/targets.h"
#include <unistd.h>

#include "tessera/models/gguf_names.h"
#include "tessera/models/gpt_names.h"

namespace {

// Readers rename tensors to the names of a family of models. Families need libtorch, which this
// build leaves out, so this file registers names of its own instead.
TESSERA_GPT_NAMES("fuzzed",
                  {.architecture = "Fuzzed",
                   .model_type = "fuzzed",
                   .table = "table.weight",
                   .positions = "positions.weight",
                   .layers = "layers.",
                   .attention_norm = "attention_norm",
                   .attention_input = "attention_input",
                   .attention_output = "attention_output",
                   .mlp_norm = "mlp_norm",
                   .mlp_input = "mlp_input",
                   .mlp_output = "mlp_output",
                   .final_norm = "final_norm",
                   .head = "head.weight",
                   .config = {}});

// The architecture of the seeds, with everything that a family may declare.
TESSERA_GGUF_NAMES("llama", [] {
  auto names = tessera::models::rotary_decoder_names("Fuzzed", "fuzzed");
  names.flags = {{"blk.0.attn_q.bias", "attention_bias"}};
  names.rotated = {{"blk.*.attn_q", "attention.head_count"},
                   {"blk.*.attn_k", "attention.head_count_kv"}};
  names.transposed = {"blk.*.ffn_down"};
  return names;
}());

const tessera::fuzz::Target& chosen() {
  static const tessera::fuzz::Target& target = []() -> const tessera::fuzz::Target& {
    const char* name = std::getenv("TESSERA_FUZZ");
    const auto found = tessera::fuzz::targets().find(name == nullptr ? "" : name);
    if (found == tessera::fuzz::targets().end()) std::abort();
    return found->second;
  }();
  return target;
}

/// The temporary folder of this process; run.sh removes it.
const std::filesystem::path& folder() {
  static const std::filesystem::path made = [] {
    std::filesystem::path path = "/dev/shm/tessera-fuzz-" + std::to_string(::getpid());
    tessera::fuzz::surround(chosen(), "tests/golden/reference", path);
    return path;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::feed(chosen(), folder(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
