// SPDX-License-Identifier: Apache-2.0
// Reads the values of options of other programs: words of a command line become settings.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/interop/foreign_flags.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {

/// The words of a command line, from which options are taken one by one. `words` must outlive it.
class OptionWords {
 public:
  explicit OptionWords(const std::vector<std::string>& words) : words_(words) {}

  [[nodiscard]] bool done() const { return at_ >= words_.size(); }
  [[nodiscard]] const std::string& word() const { return words_[at_]; }
  void skip() { ++at_; }
  /// Takes the option at the current word and returns its values: the part after "=" in the
  /// word, or the words that follow and are not flags. A switch takes only a word that is true or
  /// false. `several`: the option may take more than one word, if its form has several values.
  std::vector<std::string> take(const Option& option, bool several);

 private:
  static bool belongs(const std::string& word, Form form);
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

/// Adds to `out` what the option sets with these values; one of class `Same` adds a note. `typed`
/// names the option in messages. The option must not be of class `Refused`. Throws Error{Config}
/// for a value that is missing or has another form.
void set_option(const std::string& typed,
                const Option& option,
                const std::vector<std::string>& values,
                ForeignFlags& out);

}  // namespace tessera::interop
