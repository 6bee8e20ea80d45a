// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/context_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/optim/make_rule.h"
#include "tessera/parallel/tensor_mode.h"
#include "tessera/parallel/tensor_rules.h"

namespace tessera::parallel {
namespace {

void check_length(const ContextChoice& choice,
                  config::Problems& problems,
                  const config::Origins& origins) {
  // Settings that were already reported have no requirements.
  ParallelOptions parallel = choice.parallel;
  parallel.sequence = parallel.sequence && knows_cut(parallel.tensor, problems) &&
                      mode_of(parallel.tensor.layout()) == nn::TensorMode::OneD;
  const ContextOptions& context = parallel.context;
  const bool mode = !problems.concern("parallel.context.mode");
  // In every mode a rank has at least one chunk.
  if (!mode) parallel.context.mode = nn::ContextMode::Ulysses;
  const std::int64_t unit = parallel.token_unit(), length = choice.sequence_length;
  if (length % unit == 0) return;
  const std::string cut = context.mode == nn::ContextMode::Ring
                              ? fmt::format("{} chunks, two a rank", 2 * context.size)
                              : fmt::format("{} chunks", context.size);
  const bool shared = parallel.sequence && parallel.tensor.size > 1;
  problems.add(
      origins.place("data.sequence_length"),
      "data.sequence_length",
      fmt::format("{} tokens cannot be cut into {} (parallel.context){}",
                  length,
                  cut,
                  shared ? fmt::format(" and shared by {} ranks once more (parallel.sequence)",
                                       parallel.tensor.size)
                         : ""),
      fmt::format("set it to {}", std::max(unit, length / unit * unit)));
}

/// Ranks that exchange tokens for heads must have equal numbers of heads.
void check_heads(const ContextChoice& choice,
                 config::Problems& problems,
                 const config::Origins& origins) {
  const ParallelOptions& parallel = choice.parallel;
  if (problems.concern("parallel.context.mode") ||
      parallel.context.mode != nn::ContextMode::Ulysses)
    return;
  // One side of a grid splits the heads, the others split samples.
  const TensorOptions& tensor = parallel.tensor;
  const bool in_a_row = mode_of(tensor.layout()) == nn::TensorMode::OneD;
  const std::int64_t parts = !knows_cut(tensor, problems) ? 1
                             : in_a_row                   ? tensor.size
                                                          : tensor.grid().col;
  const std::int64_t shares = parts * parallel.context.size;
  const auto uneven =
      std::ranges::find_if(choice.heads, [&](std::int64_t count) { return count % shares != 0; });
  if (uneven == choice.heads.end()) return;
  problems.add(
      origins.place("parallel.context.mode"),
      "parallel.context.mode",
      fmt::format("{} heads cannot be shared evenly by tensor {}{} x context {} = {} ranks",
                  *uneven,
                  parts,
                  parts > 1 && !in_a_row ? " (a side of the grid)" : "",
                  parallel.context.size,
                  shares),
      fmt::format("set it to \"ring\", or {} to a multiple of {}",
                  choice.own ? "the heads" : "model.num_heads",
                  shares));
}

}  // namespace

void check_context(const ContextChoice& choice,
                   const nn::Model& model,
                   config::Problems& problems,
                   const config::Origins& origins) {
  if (choice.parallel.context.size <= 1) return;
  const auto add = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (const auto* const block = block_of_all_tokens(model)) {
    add("parallel.context.size",
        needs_all_tokens(*block),
        std::string("set it to 1") + kSayByToken);
  } else if (!model.blocks.empty()) {
    if (choice.sequence_length > 0) check_length(choice, problems, origins);
    check_heads(choice, problems, origins);
  }
  if (problems.concern("optimizer")) return;
  if (!optim::exchange_needs(choice.optimizer).compressed) return;
  add("optimizer.type",
      fmt::format("{} compresses the gradients of whole samples, and context-parallel ranks have "
                  "shares of them (parallel.context)",
                  choice.optimizer.type),
      "use AdamW, or set parallel.context.size to 1");
}

}  // namespace tessera::parallel
