// SPDX-License-Identifier: Apache-2.0
// Samples of rollouts as a text for people, next to the ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/estimators.h"
#include "tessera/tasks/rl/prompts.h"

namespace tessera::rlhf {

/// A completion with the values that its reader wants to know.
struct ReadableSample {
  std::int64_t prompt = 0;  ///< index of the prompt in the data
  std::string prompt_text, text;
  std::int64_t tokens = 0;
  bool ended = false;
  double reward = 0;          ///< the weighted sum
  std::vector<double> parts;  ///< of each reward function, NaN if it gave none
};

/// Returns the first completion of each of the first kReadableSamples groups of `group_size`
/// completions. `texts`: those of the completions.
std::vector<ReadableSample> samples_of(std::span<const Completion> completions,
                                       const std::vector<std::string>& texts,
                                       const Scored& scored,
                                       const tasks::Prompts& prompts,
                                       std::int64_t group_size);
inline constexpr std::int64_t kReadableSamples = 4;

/// A file of some completions of some rollouts, the newest last. The file is replaced when a
/// rollout is added, and loses its oldest rollouts beyond 1 MiB; texts beyond 2000 bytes are cut.
/// Threads: one.
class ReadableRollouts {
 public:
  /// Continues a file, without the rollouts of policies with more than `last_version` updates.
  /// `every`: steps between rollouts; 0: there are none. Throws Error{Io}.
  ReadableRollouts(std::filesystem::path path, std::int64_t every, std::int64_t last_version);
  /// Returns true if the rollout of the policy after `version` updates, which serves the next
  /// `updates` updates, belongs in the file: the first one, and each that serves a step that
  /// `every` divides.
  [[nodiscard]] bool wants(std::int64_t version, std::int64_t updates) const;
  /// Replaces what the file has of this and later policies. `names`: those of the rewards. Throws
  /// Error{Io}.
  void add(std::int64_t version,
           std::span<const ReadableSample> samples,
           std::span<const std::string> names);

 private:
  struct Block {
    std::int64_t version = 0;
    std::string text;
  };
  std::filesystem::path path_;
  std::int64_t every_;
  std::deque<Block> blocks_;
};

}  // namespace tessera::rlhf
