// SPDX-License-Identifier: Apache-2.0
// A command line: declares a command's arguments, parses them into variables and prints --help from
// the same declarations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::cli {

/// Flags that every command has.
struct Common {
  bool quiet = false;
  bool verbose = false;
  bool json = false;
};

/// The variable that receives a value.
using Target = std::variant<std::string*,
                            std::int64_t*,
                            double*,
                            std::optional<std::string>*,
                            std::optional<std::int64_t>*,
                            std::optional<double>*,
                            std::vector<std::string>*>;

/// The arguments of a command, for completion in shells and the manual page.
struct CommandDoc {
  struct Option {
    /// "-n", "--num-gpus"; the name alone for a positional argument.
    std::vector<std::string> names;
    bool has_value = false;
    std::string help;
  };
  std::string name;  ///< "train"
  std::string help;  ///< the whole text of --help
  std::vector<Option> options;
};

/// While an object exists, every Arguments::parse() of this thread records the command's arguments
/// instead of parsing words, and returns false.
class Collecting {
 public:
  Collecting();
  ~Collecting();
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;
  [[nodiscard]] const std::vector<CommandDoc>& found() const { return found_; }

 private:
  friend class Arguments;
  std::vector<CommandDoc> found_;
};

/// While an object exists, every Arguments::parse() of this thread checks the words of a command
/// and returns false, so that the command does nothing with them.
class CheckingWords {
 public:
  CheckingWords();
  ~CheckingWords();
  CheckingWords(const CheckingWords&) = delete;
  CheckingWords& operator=(const CheckingWords&) = delete;
};

class Arguments {
 public:
  /// `command` as typed ("train"), one sentence, and example lines to copy.
  Arguments(const std::string& command,
            const std::string& sentence,
            const std::vector<std::string>& examples);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// Declares a positional argument; they are assigned in the order of the calls.
  void positional(const std::string& name,
                  Target target,
                  const std::string& help,
                  bool required = true);
  /// `names`: "--out" or "-n,--num-gpus". A vector collects every use.
  void option(const std::string& names, Target target, const std::string& help);
  void flag(const std::string& names, bool& target, const std::string& help);
  /// Names of former options, which are suggested for an unknown one.
  void also(std::vector<std::string> names);
  /// Declares --quiet, -v, which also shows the log, and, if the command can write it, --json.
  /// `target` must outlive this.
  void common(Common& target, bool has_json = false);

  /// Parses the words after the command; "-" and "_" in names of options are equivalent. Returns
  /// false if help was requested, which has been printed. Throws Error{Config} for words that do
  /// not fit, with the nearest option.
  [[nodiscard]] bool parse(const std::vector<std::string>& typed);
  [[nodiscard]] std::string help() const;

 private:
  struct Parser;
  [[nodiscard]] CommandDoc document() const;
  std::unique_ptr<Parser> parser_;
  const Common* common_ = nullptr;
};

}  // namespace tessera::cli
