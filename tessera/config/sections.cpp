// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/sections.h"

#include <algorithm>

namespace tessera::config {

Registry<SectionKind>& section_kinds() {
  static Registry<SectionKind> registry("section of the configuration");
  return registry;
}

Sections::Sections() {
  for (const std::string& key : section_kinds().names())
    list_.push_back({key, section_kinds().get(key).make()});
  std::ranges::stable_sort(
      list_, {}, [](const Section& section) { return section_kinds().get(section.key).order; });
}

void Sections::describe(Fields& fields) {
  for (Section& section : list_) {
    const SectionKind& kind = section_kinds().get(section.key);
    fields.begin(section.key, kind.sentence);
    kind.describe(section.options, fields);
    fields.end();
  }
}

void Sections::check(Problems& problems, const Origins& origins) const {
  for (const Section& section : list_) {
    const SectionKind& kind = section_kinds().get(section.key);
    if (kind.check != nullptr) kind.check(section.options, problems, origins);
  }
}

}  // namespace tessera::config
