// SPDX-License-Identifier: Apache-2.0
// The ledger of rollouts: a file of lines of JSON to which everything that a policy wrote, and what
// it was worth, is appended. docs/rl.md has its fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/engine/rl/completions.h"

namespace tessera::engine::rl {

/// What was found for a completion once it was written.
struct Worth {
  std::vector<double> rewards;  ///< of each reward, NaN where it says nothing
  /// Of each token; `reference`, `values` and `returns` may be empty.
  std::vector<double> old, reference, values, advantages, returns;
  bool learned = true;  ///< whether it enters the loss
};

/// A worth as numbers that may be summed with zeros: of `rewards` rewards and `tokens` tokens.
std::size_t packed_size(std::size_t rewards, std::size_t tokens);
/// Writes packed_size() numbers. Error{Format} for lists of other lengths.
void pack(const Worth& worth, std::size_t tokens, std::vector<double>& to);
Worth unpacked(const std::vector<double>& from, std::size_t rewards, std::size_t tokens);

/// A rollout as the ledger has it, by the number of the completion.
struct KeptRollout {
  std::int64_t version = -1;  ///< updates that the policy had when it wrote
  std::map<std::int64_t, Completion> completions;
  std::map<std::int64_t, Worth> worths;
};

/// One line of a completion. `prompt`: its tokens; `text`: what it says, for people.
json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    std::int64_t sample,
                    std::uint64_t seed,
                    std::span<const std::int32_t> prompt,
                    const Completion& completion,
                    const std::string& text);
/// One line of what a completion is worth; `names` of the rewards.
json::Value to_json(std::int64_t version,
                    std::int64_t number,
                    const Worth& worth,
                    const std::vector<std::string>& names);

/// Appends lines; each call's are on the disk's way when it returns, so that a process that is
/// killed leaves whole lines and perhaps a torn last one. Error{Io}. Threads: one.
class Ledger {
 public:
  /// Cuts what policies of more than `last_version` updates wrote, and a torn last line.
  Ledger(std::filesystem::path path, std::int64_t last_version);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  void append(const std::vector<json::Value>& lines);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// What the file has of the newest policy of at most `last_version` updates;
/// nothing where it has none. Memory: the lines of one rollout. Error{Format} for a line that is
/// none, except for a torn last one.
std::optional<KeptRollout> read_rollout(const std::filesystem::path& path,
                                        std::int64_t last_version,
                                        const std::vector<std::string>& reward_names);

}  // namespace tessera::engine::rl
