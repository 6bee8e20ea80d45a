// SPDX-License-Identifier: Apache-2.0
// Sections of a configuration that their owners register, so that code below them reads, documents
// and checks them without naming them.
//
//   struct CsvOptions { bool enabled = false; void describe(config::Fields& fields); };
//   const bool kRegistered = config::add_section<CsvOptions>("csv", 10, "Metrics as csv files.");
//
// and later `sections.get<CsvOptions>().enabled`.
#pragma once

#include <any>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"
#include "tessera/config/fields.h"

namespace tessera::config {

/// A registered section at the top level of a configuration.
struct SectionKind {
  int order = 0;         ///< position among the registered sections; equal ones are ordered by key
  std::string sentence;  ///< for the documentation
  std::any (*make)();    ///< the options with their defaults
  void (*describe)(std::any& options, Fields& fields);
  /// Reports invalid values; may be nullptr.
  void (*check)(const std::any& options, Problems& problems, const Origins& origins);
};
Registry<SectionKind>& section_kinds();

/// Registers the options S, which have a describe(), as the section `key`. If S has a member
/// `void check(Problems&, const Origins&) const`, it reports invalid values. Call it once for each
/// S, before main begins.
template <class S>
bool add_section(const std::string& key, int order, std::string sentence);

/// The options of all registered sections. Make it only after main has begun.
class Sections {
 public:
  /// Every section with its defaults.
  Sections();
  /// Describes the sections in their order.
  void describe(Fields& fields);
  /// Reports the invalid values of all sections.
  void check(Problems& problems, const Origins& origins) const;
  /// The options of the section that was registered with S.
  template <class S>
  [[nodiscard]] const S& get() const;

 private:
  struct Section {
    std::string key;
    std::any options;
  };
  std::vector<Section> list_;
};

template <class S>
bool add_section(const std::string& key, int order, std::string sentence) {
  SectionKind kind{
      .order = order,
      .sentence = std::move(sentence),
      .make = [] { return std::any(S()); },
      .describe = [](std::any& options, Fields& f) { std::any_cast<S&>(options).describe(f); },
      .check = nullptr};
  if constexpr (requires(const S& s, Problems& p, const Origins& o) { s.check(p, o); }) {
    kind.check = [](const std::any& options, Problems& problems, const Origins& origins) {
      std::any_cast<const S&>(options).check(problems, origins);
    };
  }
  return section_kinds().add(key, std::move(kind));
}

template <class S>
const S& Sections::get() const {
  for (const Section& section : list_) {
    if (const S* const found = std::any_cast<S>(&section.options)) return *found;
  }
  throw Error(Error::Kind::Bug, "no section of the configuration has these options", "");
}

}  // namespace tessera::config
