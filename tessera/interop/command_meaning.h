// SPDX-License-Identifier: Apache-2.0
// The interface of a program whose commands are read: how its commands are recognised, the tables
// of its options, and what several options mean together. A program's folder registers it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/foreign_flags.h"

namespace tessera::interop {

/// A command whose options have been read, for the rules of its program.
class Meaning {
 public:
  /// Returns the setting of a name of a table ("@lora_r") or of a key: as given, else the program's
  /// default; nullptr: neither.
  [[nodiscard]] const ForeignFlags::Setting* find(std::string_view key) const;
  /// Returns it only if the command or its file gives it.
  [[nodiscard]] const ForeignFlags::Setting* given(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key, std::string_view absent = "") const;
  [[nodiscard]] bool is_on(std::string_view key) const;
  /// The texts of a list, or the parts of a text between commas and spaces.
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) const;

  /// Sets a key of the configuration; its place is the option of `from`, or the program.
  void set(std::string_view key, json::Value value, const ForeignFlags::Setting* from = nullptr);
  /// The same with the value of `from`.
  void copy(std::string_view key, const ForeignFlags::Setting* from);
  void drop(std::string_view key);
  /// The value of a key of the configuration, or nullptr.
  [[nodiscard]] const json::Value* value(std::string_view path) const;
  void note(std::string text);
  /// Reports something that the command asks for and that does not exist here.
  void refuse(std::string what, std::string fix);

  std::string program;  ///< "TRL's dpo"
  std::string script;   ///< as typed
  json::Value source = json::Value::object();
  ForeignFlags defaults, flags;  ///< of the program; of launcher, files and command, in this order
  std::vector<std::string> positional;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> own_words;  ///< tessera's own flags, in addition to those typed
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> problems;
  /// The command of tessera that does what was asked, and its words if it is not train.
  std::string command = "train";
  std::vector<std::string> words;
};

/// A program, or one of its scripts.
struct Program {
  std::string_view title;  ///< "TRL's dpo"
  /// Names of its script ("run_clm.py"), or its words ("trl dpo").
  std::vector<std::string_view> names;
  /// These tell programs apart whose scripts have the same name: a part of the script's path, and
  /// options of which at least one is given.
  std::vector<std::string_view> folders = {};
  std::vector<std::string_view> marks = {};
  std::vector<std::string_view> tables =
      {};                          ///< "trl/dpo", in order: the first that has the option
  std::string_view always = "{}";  ///< keys that it always sets, as JSON
  void (*rules)(Meaning&) = nullptr;
  /// The option that names a YAML file of settings; "-": the first word that is not an option.
  std::string_view file = "";
  /// Keys of the file that are maps, and the tables of their members, which have "KEY." in front.
  std::vector<std::pair<std::string_view, std::string_view>> nested = {};
  std::string_view refused = "";  ///< why it does not exist here
  std::string_view instead = "";  ///< and what to use
};

/// Registers programs before main. Returns true.
bool add_programs(std::vector<Program> programs);
const std::vector<Program>& programs();

/// A launcher: starts a script, or another program, on several ranks.
struct LauncherProgram {
  std::string_view name;   ///< "torchrun", "accelerate launch"
  std::string_view table;  ///< "launchers/torchrun"
  bool starts_ranks = true;
  void (*rules)(Meaning&) = nullptr;  ///< reads its file, and sets ranks
};
bool add_launchers(std::vector<LauncherProgram> launchers);
const std::vector<LauncherProgram>& launchers();

}  // namespace tessera::interop
