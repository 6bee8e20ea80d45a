// SPDX-License-Identifier: Apache-2.0
// Completions of prompts by a policy: sampling, and their form as rows of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/nn/block.h"
#include "tessera/nn/cache_form.h"
#include "tessera/nn/token_log_probabilities.h"
#include "tessera/parallel/executor.h"

// Legend: B completions, T tokens of a prompt with its completion.
namespace tessera::rlhf {

/// A completion that a policy wrote.
struct Completion {
  std::int64_t prompt = 0;                ///< index of the prompt in the data
  std::vector<std::int32_t> ids;          ///< including the end of text, if there is one
  std::vector<double> log_probabilities;  ///< of each token, when it was sampled
  double entropy = 0.0;                   ///< sum over its tokens of the distributions' entropies
  std::uint64_t seed = 0;                 ///< of its random numbers
  std::int64_t round = 0;                 ///< how often its group was replaced before
  /// Number of updates between the policy that wrote it and the one that begins to learn from it.
  std::int64_t lag = 0;
  bool ended = false;
};

/// Returns how many numbers describe a completion of at most `longest` tokens.
std::size_t numbers_of_completion(std::int64_t longest);
/// Serializes the completion into numbers_of_completion(longest) doubles, so that it can be sent.
/// Entries after its tokens are not written.
void to_numbers(const Completion& completion, std::int64_t longest, double* to);
Completion completion_of_numbers(const double* from, std::int64_t longest);

struct SamplingOptions {
  std::int64_t max_new_tokens = 0;
  nn::Distribution distribution;
  std::vector<std::int32_t> ends;  ///< the tokens that end a completion
  std::int64_t vocabulary = 0;     ///< number of tokens that may be sampled
  /// The most completions that are continued by one forward; 0: all.
  std::int64_t rows = 0;
  nn::CacheForm cache = nn::CacheForm::Same;
};

/// Returns the numbers of completions that one rank generates together: those of at most
/// `prompts_at_once` consecutive prompts. Prompt i has the completions from i * samples on.
std::vector<std::vector<std::int64_t>> units_of(std::int64_t prompts,
                                                std::int64_t samples,
                                                std::int64_t prompts_at_once);

/// A completion to generate: its prompt, and the key of its random numbers. Token number i is
/// sampled with Philox(seed)(i), so it is a function of seed and prompt only.
struct Draw {
  std::span<const std::int32_t> prompt;
  std::uint64_t seed = 0;
};

/// Generates completions of prompts of any lengths. At most options.rows of them are continued at a
/// time: one that ends leaves its row and its memory to the next one. `others`: returns whether a
/// rank of the group is still at work; called once per forward if ranks must take the same steps
/// because each has a part of the weights; empty: not needed. Cost: a forward of the prompts, each
/// once for consecutive completions, those of one length that begin at the same time together; then
/// one of a single position per token of those that have not ended. Completions of a prompt share
/// the pages of its keys and values.
std::vector<Completion> draw_together(parallel::Executor& executor,
                                      comm::World& world,
                                      std::span<const Draw> draws,
                                      const SamplingOptions& options,
                                      const std::function<bool(bool mine)>& others);

/// Prompts and completions as rows of a batch, padded on the right with `pad_id`.
struct Rows {
  at::Tensor input_ids_BT;  ///< int64
  /// The next token if it belongs to the completion, else -100: valid in the columns from the last
  /// token of the prompt to the last but one of the completion.
  at::Tensor labels_BT;
  std::vector<std::int64_t> lengths;  ///< of each prompt with its completion
  [[nodiscard]] std::int64_t size() const { return input_ids_BT.size(0); }
  /// Returns the number of columns with which the `count` rows from `first` on are computed: the
  /// longest one, rounded up so that there are few different shapes, and at most T.
  [[nodiscard]] std::int64_t columns(std::int64_t first, std::int64_t count) const;
};
struct RowOf {
  std::span<const std::int32_t> prompt, completion;
};
Rows rows_of(std::span<const RowOf> rows, std::int64_t length, std::int32_t pad_id);

/// Places one number per token of the completions into the columns of their labels, 0 elsewhere;
/// fp64 [B, T].
at::Tensor in_columns(const Rows& rows,
                      const std::function<double(std::int64_t row, std::int64_t token)>& value);

/// Computes the objective's output `name` [B, T] of all rows, fp64 on every rank: micro-batch
/// number i of `micro_batch` rows is computed by data-parallel rank i mod n, so that no value
/// depends on the layout. Collective.
at::Tensor output_of_rows(parallel::Executor& executor,
                          comm::World& world,
                          const Rows& rows,
                          std::int64_t micro_batch,
                          const char* name);

}  // namespace tessera::rlhf
