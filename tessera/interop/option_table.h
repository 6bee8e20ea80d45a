// SPDX-License-Identifier: Apache-2.0
// The options of other programs as tables of text: one row for each option of a program's parser.
//
//   [trainer]
//   @screen = every step is written to the run folder
//   learning_rate | mapped number optimizer.lr | 5e-5
//   disable_tqdm  | same switch                | false | @screen
//   torch_compile | refused switch             | false | remove it: kernels are compiled already
//
// A row has the names (with commas between them), the class with the form of the value and, if the
// option is mapped, the key; the default of the program; and a note: the reason of class `same`,
// the alternative of class `refused`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::interop {

/// The meaning of an option here.
enum class OptionClass : std::uint8_t {
  Mapped,   ///< it sets a key
  Same,     ///< it has no effect, because tessera does so already or has nothing of that kind
  Refused,  ///< it would change the result, or asks for something that does not exist
};

/// The form of an option's value.
enum class Form : std::uint8_t {
  Number,
  Text,
  Switch,
  Off,    // a switch whose key becomes false if the flag is given
  Stage,  // a switch between ZeRO's stages 1 and 0
  Config,
  Rank,         // an integer that is not needed
  Beta,         // a beta of Adam: the key is its index
  LoraRank,     // DeepSpeed-Chat's rank of an adapter; 0 means none
  LoraModules,  // a part of the names of adapted layers
  Dtype,        // fp16 or bf16
  Zero,         // a switch that sets its key to 0
  Ema,          // a switch that sets its key to DeepSpeed-Chat's decay
  Questions,    // a switch that sets its key to the turns of the user
  DataPaths,    // one or several files
  Object,       // an object of JSON
  Json,         // any value, as it stands in a file or as JSON
  Names,        // a list of JSON, or names with commas between them
  ReportTo,     // names of monitors
  BoardFolder,  // folder of TensorBoard's files; key: "on" if the flag also enables them
  WandbProject,
  RunName,
  MegatronRate,  // a parameter of Megatron-LM's schedule
  Vocabulary,    // a file of GPT-2's tokenizer
  Backend,       // of torch.distributed
  Sharded,       // how torch or fairscale divide the states: words that stand for a stage of ZeRO
  Split,         // shares of training, validation and test data
  One,           // number of hosts: the value must be one
  Nothing,       // a flag without a value
  Value,         // any value, which is not read
  Many,          // any number of values
};

/// A row of a table. The texts belong to the table's own text, which lives as long as the program.
struct Option {
  std::vector<std::string_view> names;  ///< with "_" between words and without dashes
  OptionClass kind = OptionClass::Mapped;
  Form form = Form::Text;
  std::string_view key;  ///< of a mapped option; with "@" in front, a name for a program's rules
  std::string_view initial;  ///< the program's default; empty: none
  std::string_view note;
};

/// A section of a table: the options that one parser of a program declares.
class OptionTable {
 public:
  /// Returns the option with that name; "-" and "_" are equivalent, dashes in front are ignored.
  /// nullptr: there is none.
  [[nodiscard]] const Option* find(std::string_view name) const;
  [[nodiscard]] const std::vector<Option>& options() const { return options_; }
  [[nodiscard]] std::string_view title() const { return title_; }

 private:
  friend class TableReader;
  std::string_view title_;  ///< the words after the section's name
  std::vector<Option> options_;
  std::map<std::string_view, std::size_t> by_name_;
};

/// Registers a text of tables before main; `program` is the first part of their names. Returns
/// true.
bool add_option_tables(std::string_view program, std::string_view rows);
/// Returns the section "PROGRAM/SECTION". A text is read at its first use. Throws Error{Bug} for a
/// section that does not exist, a row of another form, and a name that occurs twice in a section.
const OptionTable& option_table(std::string_view name);
/// The names of all sections, "trl/sft", sorted.
std::vector<std::string> option_tables();

/// Returns a name as the tables have it: "--Per-Device" becomes "Per_Device".
std::string option_name(std::string_view typed);

}  // namespace tessera::interop
