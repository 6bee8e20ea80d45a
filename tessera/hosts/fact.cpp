// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/fact.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/core.h>

namespace tessera::hosts {
namespace {

constexpr std::size_t kMostNamed = 8;

std::string fix_of(Fact::Kind kind) {
  switch (kind) {
    case Fact::Kind::Contents:
    case Fact::Kind::Samples:
      return "copy the same files to every host, or put them on a disk that all hosts share";
    case Fact::Kind::Progress:
      return "put run.dir on a disk that all hosts share, or start over with --resume never";
    default:
      return "start every host with the same configuration and the same flags";
  }
}

std::string text_of(const std::string& name,
                    const Fact& fact,
                    const std::string& first,
                    const Fact& of_first) {
  if (fact.kind == Fact::Kind::Contents || fact.kind == Fact::Kind::Samples) {
    return fmt::format("{} differs: {} has other contents on host {} than on host {}",
                       fact.what,
                       fact.where,
                       name,
                       first);
  }
  return fmt::format("{} differs: {} on host {}, {} on host {}",
                     fact.what,
                     fact.value,
                     name,
                     of_first.value,
                     first);
}

/// Collects differences up to a number.
class Differences {
 public:
  void add(std::string text, Fact::Kind kind) {
    if (++found_ > kMostNamed) return;
    out_.push_back({std::move(text), fix_of(kind)});
  }
  void add_all(const Differences& more) {
    for (const FactDifference& one : more.out_) {
      if (++found_ <= kMostNamed) out_.push_back(one);
    }
  }
  std::vector<FactDifference> take(const std::string& name) {
    if (found_ > kMostNamed)
      out_.push_back({fmt::format("host {}: {} more differences", name, found_ - kMostNamed), ""});
    return std::move(out_);
  }
  [[nodiscard]] bool none() const { return found_ == 0; }

 private:
  std::vector<FactDifference> out_;
  std::size_t found_ = 0;
};

}  // namespace

std::vector<FactDifference> differences(const std::string& name,
                                        const std::vector<Fact>& facts,
                                        const std::string& first,
                                        const std::vector<Fact>& of_first) {
  // The facts are in the order in which they are sent; almost always they are equal.
  if (facts == of_first) return {};
  using Key = std::pair<std::string, std::string>;
  std::map<Key, const Fact*> others;
  for (const Fact& fact : of_first)
    others[{fact.what, fact.where}] = &fact;
  Differences certain, samples, rest;
  // Other settings, or another tokenizer, make other samples of the same files.
  bool makes_others = false;
  for (const Fact& fact : facts) {
    const auto found = others.find({fact.what, fact.where});
    const std::string place = fact.where.empty() ? fact.what : fact.what + " " + fact.where;
    if (found == others.end()) {
      rest.add(fmt::format("{}: host {} has it and host {} has not", place, name, first),
               fact.kind);
      continue;
    }
    const Fact& other = *found->second;
    if (other.value != fact.value) {
      const bool settles = fact.kind == Fact::Kind::Setting || fact.what == kTokenizer;
      makes_others = makes_others || settles;
      Differences& to = fact.kind == Fact::Kind::Samples   ? samples
                        : fact.kind == Fact::Kind::Derived ? rest
                                                           : certain;
      to.add(text_of(name, fact, first, other), fact.kind);
    }
    others.erase(found);
  }
  for (const auto& [key, fact] : others) {
    const std::string place = fact->where.empty() ? fact->what : fact->what + " " + fact->where;
    rest.add(fmt::format("{}: host {} has it and host {} has not", place, first, name), fact->kind);
  }
  if (!makes_others) certain.add_all(samples);
  return certain.none() ? rest.take(name) : certain.take(name);
}

}  // namespace tessera::hosts
