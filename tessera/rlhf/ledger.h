// SPDX-License-Identifier: Apache-2.0
// The ledger of rollouts: a file of JSON lines to which every completion of a policy and its
// rewards are appended. docs/rl.md describes the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/rlhf/completions.h"

namespace tessera::rlhf {

/// Values computed for a completion after it was written.
struct Worth {
  std::vector<double> rewards;  ///< of each reward function, NaN if it gave none
  /// For each token; `reference`, `values` and `returns` may be empty.
  std::vector<double> old, reference, values, advantages, returns;
  bool learned = true;  ///< whether it enters the loss
  /// The coefficient of the divergence after this rollout, if it is adapted. Not packed.
  std::optional<double> kl_coefficient;
};

/// Returns the size of a Worth as numbers that may be summed with zeros, with `rewards` rewards and
/// `tokens` tokens.
std::size_t packed_size(std::size_t rewards, std::size_t tokens);
/// Appends packed_size() numbers. Throws Error{Format} for lists of other lengths.
void pack(const Worth& worth, std::size_t tokens, std::vector<double>& to);
Worth unpacked(const std::vector<double>& from, std::size_t rewards, std::size_t tokens);

/// A rollout in the ledger, by the number of the completion.
struct KeptRollout {
  std::int64_t version = -1;  ///< number of updates of the policy that begins to learn from it
  std::map<std::int64_t, Completion> completions;
  std::map<std::int64_t, Worth> worths;
  /// The newest coefficient of the divergence in the ledger, also of an earlier rollout.
  std::optional<double> kl_coefficient;
};

/// Returns the line of a completion. `prompt`: its tokens; `text`: its text, for readers.
json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    std::int64_t sample,
                    std::span<const std::int32_t> prompt,
                    const Completion& completion,
                    const std::string& text);
/// Returns the line with a completion's values; `names` are those of the rewards.
json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    const Worth& worth,
                    const std::vector<std::string>& names);

/// Appends lines; they are passed to the system before each call returns, so that a killed process
/// leaves complete lines and at most an incomplete last one. Throws Error{Io}. Threads: one.
class Ledger {
 public:
  /// Removes the lines of policies with more than `last_version` updates, and an incomplete last
  /// line.
  Ledger(std::filesystem::path path, std::int64_t last_version);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  void append(const std::vector<json::Value>& lines);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Copies the lines of policies with `first` to `last` updates into a new file. Does nothing if
/// there is no ledger. Throws Error{Io}, and Error{Format} as read_rollout().
void copy_rollouts(const std::filesystem::path& from,
                   const std::filesystem::path& to,
                   std::int64_t first,
                   std::int64_t last);

/// Returns the rollout of the newest policy with at most `last_version` updates; nothing if there
/// is none. Memory: the lines of one rollout. Throws Error{Format} for an invalid line other than
/// an incomplete last one.
std::optional<KeptRollout> read_rollout(const std::filesystem::path& path,
                                        std::int64_t last_version,
                                        const std::vector<std::string>& reward_names);

}  // namespace tessera::rlhf
