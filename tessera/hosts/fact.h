// SPDX-License-Identifier: Apache-2.0
// Facts that decide the result of a job. Its hosts compare them before the ranks begin.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::hosts {

/// Fact::what of the tokenizer.
inline constexpr const char* kTokenizer = "tokenizer";

/// Facts of two hosts are about the same thing if `what` and `where` are equal.
struct Fact {
  enum class Kind : std::uint8_t {
    Setting,   ///< a key of the configuration; `where` is empty
    Contents,  ///< what a host reads: `value` is a hash of the contents of `where`
    Samples,   ///< what the contents of `where` become with the settings and the tokenizer
    Progress,  ///< where the training resumes
    Derived    ///< follows from others, which are named instead if they differ
  };
  Kind kind = Kind::Setting;
  std::string what;   ///< "optimizer.params.lr", "data.train", "model.from"
  std::string where;  ///< the files or the folder
  std::string value;  ///< compared, and shown if it is short
  bool operator==(const Fact&) const = default;
};

/// Returns the facts of this host, which may take as long as reading all files. Calls `alive` at
/// least every few MiB.
using FactsOfHost = std::function<std::vector<Fact>(const std::function<void()>& alive)>;

/// A difference between the facts of two hosts, with its remedy.
struct FactDifference {
  std::string what, fix;
};
/// Returns the differences of the facts of host `name` from those of host `first`. Facts that only
/// one of them has, or that follow from others, are named if nothing else differs.
std::vector<FactDifference> differences(const std::string& name,
                                        const std::vector<Fact>& facts,
                                        const std::string& first,
                                        const std::vector<Fact>& of_first);

}  // namespace tessera::hosts
