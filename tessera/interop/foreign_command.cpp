// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/foreign_command.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/overrides.h"
#include "tessera/interop/command_meaning.h"
#include "tessera/interop/command_words.h"
#include "tessera/interop/option_table.h"
#include "tessera/interop/option_values.h"
#include "tessera/interop/yaml.h"

namespace tessera::interop {
namespace {

constexpr std::string_view kHost = "@host";

// Reads options by the tables of a program or launcher.
class OptionReader {
 public:
  OptionReader(std::vector<std::string_view> tables, Meaning& out)
      : tables_(std::move(tables)), out_(out) {}

  // `own`: takes tessera's own flags, which the program does not have.
  void read_words(const std::vector<std::string>& words, std::vector<std::string>* own) {
    OptionWords reader(words);
    while (!reader.done()) {
      const std::string word = reader.word();
      const bool number = word.size() > 1 && ((word[1] >= '0' && word[1] <= '9') || word[1] == '.');
      if (word.size() < 2 || word[0] != '-' || number) {
        out_.positional.push_back(word);
        reader.skip();
        continue;
      }
      const std::string typed = word.substr(0, word.find('='));
      const Option* option = find(typed);
      if (option == nullptr && is_glued(word)) {
        option = find(word.substr(0, 2));
        if (option != nullptr) {
          give(word.substr(0, 2), *option, {word.substr(2)});
          reader.skip();
          continue;
        }
      }
      if (option == nullptr && own != nullptr && take_own(reader, words, *own)) continue;
      if (option == nullptr) {
        read_unknown(reader, typed);
        continue;
      }
      std::vector<std::string> values = reader.take(*option, true);
      if (negated(typed, *option)) values = {"false"};
      give(typed, *option, values);
    }
  }

  // Reads the members of a file. `prefix`: of their names in the tables.
  void read_members(const json::Value& map,
                    const std::string& prefix,
                    const std::vector<std::pair<std::string_view, std::string_view>>& nested) {
    for (const auto& [key, value] : map.members()) {
      const std::string name = prefix + key;
      const std::string typed = fmt::format("{}: {}", value.key_place.text(), name);
      const Option* const option = find(name);
      if (value.is_null()) continue;
      if (option == nullptr && value.is_object() && is_nested(name, nested)) {
        read_members(value, name + ".", nested);
      } else if (option == nullptr) {
        report_unknown(typed, name);
      } else if (option->form == Form::Json && option->kind == OptionClass::Mapped) {
        taken_.insert(option);
        out_.flags.settings.push_back({typed, std::string(option->key), value});
      } else {
        give(typed, *option, texts_of(value));
      }
    }
  }

  // Adds the program's defaults of the options that were not given.
  void add_defaults(const json::Value& file) {
    std::set<std::string_view> seen;
    for (const std::string_view name : tables_) {
      for (const Option& option : option_table(name).options()) {
        bool first = true;
        for (const std::string_view one : option.names)
          first = seen.insert(one).second && first;
        if (!first || option.kind != OptionClass::Mapped || option.initial.empty()) continue;
        if (taken_.contains(&option) || has(file, option.key)) continue;
        const std::string typed = fmt::format(
            "--{} {}, the default of {}", option.names.front(), option.initial, out_.program);
        set_option(typed, option, {std::string(option.initial)}, out_.defaults);
      }
    }
  }

  [[nodiscard]] const std::vector<std::string>& idle() const { return idle_; }

 private:
  [[nodiscard]] const Option* find(std::string_view typed) const {
    for (const std::string_view name : tables_) {
      if (const Option* const found = option_table(name).find(typed)) return found;
    }
    const std::string name = option_name(typed);
    if (!name.starts_with("no_")) return nullptr;
    for (const std::string_view table : tables_) {
      const Option* const found = option_table(table).find(name.substr(3));
      if (found != nullptr && found->form == Form::Switch) return found;
    }
    return nullptr;
  }
  // Hugging Face's parser accepts --no_X for a switch X that is on.
  static bool negated(std::string_view typed, const Option& option) {
    const std::string name = option_name(typed);
    return option.form == Form::Switch && name.starts_with("no_") &&
           std::find(option.names.begin(), option.names.end(), name) == option.names.end();
  }

  // -n2: a short option with its number.
  static bool is_glued(std::string_view word) {
    return word.size() > 2 && word[1] != '-' &&
           word.find_first_not_of("0123456789", 2) == word.npos;
  }

  static bool is_nested(std::string_view name,
                        const std::vector<std::pair<std::string_view, std::string_view>>& nested) {
    return std::any_of(
        nested.begin(), nested.end(), [&](const auto& one) { return one.first == name; });
  }

  static std::vector<std::string> texts_of(const json::Value& value) {
    if (value.is_string()) return {value.as_string()};
    if (!value.is_array()) return {value.dump()};
    std::vector<std::string> out;
    for (const json::Value& item : value.items())
      out.push_back(item.is_string() ? item.as_string() : item.dump());
    return out;
  }

  // A value with which an option that is refused asks for nothing.
  static bool is_harmless(const Option& option, const std::vector<std::string>& values) {
    if (values.empty()) return option.form != Form::Switch && option.form != Form::Nothing;
    const std::string value = text::lower(values.front());
    for (const std::string_view nothing : {"false", "none", "null", "no", ""}) {
      if (value == nothing) return true;
    }
    return !option.initial.empty() && same_value(value, text::lower(option.initial));
  }
  static bool same_value(const std::string& one, const std::string& other) {
    if (one == other) return true;
    try {
      const json::Value a = json::parse(one, ""), b = json::parse(other, "");
      return a.is_number() && b.is_number() && a.as_double() == b.as_double();
    } catch (const Error&) {
      return false;
    }
  }

  void give(const std::string& typed,
            const Option& option,
            const std::vector<std::string>& values) {
    taken_.insert(&option);
    if (option.kind == OptionClass::Refused) {
      if (is_harmless(option, values)) return;
      const std::string shown = values.empty() ? typed : typed + " " + text::join(values, " ");
      out_.refuse(fmt::format("{} is not supported", shown), std::string(option.note));
      return;
    }
    if (option.kind == OptionClass::Same) {
      idle_.push_back(typed);
      return;
    }
    try {
      if (option.key == kHost) {
        out_.flags.settings.push_back(
            {typed, std::string(kHost), json::Value::string(text::join(values, ","))});
        return;
      }
      set_option(typed, option, values, out_.flags);
    } catch (const Error& error) {
      out_.refuse(error.what(), error.fix());
    }
  }

  void report_unknown(const std::string& typed, std::string_view name) {
    std::vector<std::string> names;
    for (const std::string_view table : tables_) {
      for (const Option& option : option_table(table).options()) {
        for (const std::string_view one : option.names)
          names.emplace_back(one);
      }
    }
    const auto near = text::nearest(option_name(name), names);
    out_.refuse(fmt::format("{} is not an option of {}", typed, out_.program),
                near ? fmt::format("did you mean {}?", *near) : "remove it");
  }

  void read_unknown(OptionWords& reader, const std::string& typed) {
    report_unknown(typed, typed);
    const Option any{.names = {"unknown"}, .form = Form::Many};
    static_cast<void>(reader.take(any, true));
  }

  static bool take_own(OptionWords& reader,
                       const std::vector<std::string>& /*words*/,
                       std::vector<std::string>& own) {
    const std::string word = reader.word();
    const std::string name = word.substr(0, word.find('='));
    for (const std::string_view flag :
         {"--dry-run", "--dry_run", "--json", "-q", "--quiet", "-v", "--verbose"}) {
      if (name != flag) continue;
      own.push_back(word);
      reader.skip();
      return true;
    }
    if (name != "--set" && name != "--resume") return false;
    own.push_back(name);
    const Option one{.names = {"own"}, .form = Form::Value};
    for (std::string& value : reader.take(one, false))
      own.push_back(std::move(value));
    return true;
  }

  // True if the file gives the key a value other than "auto".
  static bool has(const json::Value& file, std::string_view key) {
    const json::Value* at = &file;
    std::vector<std::string> steps = text::split(key, '.');
    if (steps.size() == 2 && (steps[0] == "optimizer" || steps[0] == "scheduler") &&
        steps[1] != "type")
      steps.insert(steps.begin() + 1, "params");
    for (const std::string& step : steps)
      at = at != nullptr && at->is_object() ? at->find(step) : nullptr;
    return at != nullptr && !(at->is_string() && at->as_string() == "auto");
  }

  std::vector<std::string_view> tables_;
  Meaning& out_;
  std::set<const Option*> taken_;
  std::vector<std::string> idle_;
};

// The settings that the launchers of a command give.
struct Launched {
  std::optional<std::int64_t> ranks;
  std::vector<std::string> host_words, idle;
  ForeignFlags flags;
  std::vector<std::pair<std::string, std::string>> problems;
};

Launched read_launchers(const CommandWords& command) {
  Launched out;
  std::string first;
  for (const auto& [launcher, words] : command.launchers) {
    Meaning meaning;
    meaning.program = launcher->name;
    OptionReader reader({launcher->table}, meaning);
    reader.read_words(words, nullptr);
    TESSERA_REQUIRE(!launcher->starts_ranks || first.empty(),
                    Config,
                    fmt::format("two launchers: {} and {}", first, launcher->name),
                    "keep the one that starts the ranks");
    if (launcher->starts_ranks) first = launcher->name;
    if (launcher->rules != nullptr) launcher->rules(meaning);
    if (meaning.ranks) out.ranks = meaning.ranks;
    for (ForeignFlags::Setting& setting : meaning.flags.settings) {
      if (setting.key == kHost) {
        out.host_words.push_back(setting.flag);
        if (!setting.value.as_string().empty()) out.host_words.push_back(setting.value.as_string());
      } else if (!setting.key.starts_with('@')) {
        out.flags.settings.push_back(std::move(setting));
      }
    }
    if (!meaning.flags.config.empty()) out.flags.config = meaning.flags.config;
    std::move(meaning.problems.begin(), meaning.problems.end(), std::back_inserter(out.problems));
    out.idle.insert(out.idle.end(), reader.idle().begin(), reader.idle().end());
  }
  return out;
}

[[noreturn]] void throw_problems(const Meaning& meaning) {
  const auto& problems = meaning.problems;
  if (problems.size() == 1)
    throw Error(Error::Kind::Config, problems.front().first, problems.front().second);
  std::string what =
      fmt::format("{}: {} options cannot be used:", meaning.program, problems.size());
  for (const auto& [problem, fix] : problems)
    what += fmt::format("\n  {}{}{}", problem, fix.empty() ? "" : ": ", fix);
  throw Error(Error::Kind::Config, what, "");
}

[[noreturn]] void refuse_unknown_script(const std::string& script) {
  std::vector<std::string> names;
  for (const Program& program : programs()) {
    for (const std::string_view name : program.names)
      names.emplace_back(name);
  }
  const std::string name = std::filesystem::path(script).filename().string();
  const auto near = text::nearest(name, names);
  throw Error(
      Error::Kind::Config,
      fmt::format("{} is a script that tessera does not know, and scripts are not executed",
                  script),
      fmt::format("{}write a configuration: tessera init --help; docs/coming_from names the "
                  "scripts that are read",
                  near && *near != name ? fmt::format("did you mean {}? Else ", *near) : ""));
}

// The file of settings that the words name; one that is a word of its own is removed from them.
std::string take_settings_file(const Program& program, std::vector<std::string>& rest) {
  if (program.file.empty() || rest.empty()) return "";
  if (program.file == "-") {
    if (rest.front().starts_with('-')) return "";
    std::string file = rest.front();
    rest.erase(rest.begin());
    return file;
  }
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const std::size_t equals = rest[i].find('=');
    if (!rest[i].starts_with("--") || option_name(rest[i].substr(0, equals)) != program.file)
      continue;
    if (equals != std::string::npos) return rest[i].substr(equals + 1);
    return i + 1 < rest.size() ? rest[i + 1] : "";
  }
  // The file that the program reads without the option.
  for (const std::string_view table : program.tables) {
    const Option* const option = option_table(table).find(program.file);
    std::error_code ignored;
    if (option == nullptr) continue;
    return std::filesystem::is_regular_file(option->initial, ignored) ? std::string(option->initial)
                                                                      : "";
  }
  return "";
}

void set_always(std::string_view always, Meaning& meaning) {
  for (const auto& [path, value] : json::leaves(json::parse(always, meaning.program)))
    config::set_key(meaning.source, path, value, meaning.program);
}

// Flags of launchers that choose hosts or their slots.
bool chooses_hosts(const std::string& word) {
  static const std::set<std::string_view> flags = {"--hostfile",
                                                   "-H",
                                                   "--include",
                                                   "-i",
                                                   "--exclude",
                                                   "-e",
                                                   "--host",
                                                   "--launcher",
                                                   "--force_multi",
                                                   "--max_elastic_nodes",
                                                   "--nnodes"};
  return flags.count(word) > 0;
}

// Without a number of ranks and of hosts, those that the layout needs. Returns a note about it.
std::string set_least_ranks(Meaning& meaning, const std::vector<std::string>& host_words) {
  if (meaning.ranks || std::ranges::any_of(host_words, chooses_hosts)) return "";
  const auto size = [&](const char* key) -> std::int64_t {
    const json::Value* const value = meaning.value(key);
    const auto count = value != nullptr && value->is_number() ? value->as_integer() : std::nullopt;
    return count && *count >= 1 && *count <= 1'000'000 ? *count : 1;
  };
  const std::int64_t tokens = size("parallel.tensor.size") * size("parallel.context.size"),
                     experts = size("parallel.expert") * size("parallel.expert_tensor"),
                     model = std::lcm(tokens, experts) * size("parallel.pipeline.size"),
                     least = std::lcm(model, size("hybrid_engine.inference_tp_size"));
  if (least <= 1) return "";
  meaning.ranks = least;
  return fmt::format(
      "the command names no number of ranks: {} are started, the fewest that its layout needs; "
      "torchrun --nproc_per_node N starts more",
      least);
}

// LLaMA-Factory's key=value behind the file.
std::vector<std::string> with_dashes(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    // --config_overrides n_embd=8 gives a value to the option.
    const bool value =
        !out.empty() && out.back().starts_with("--") && out.back().find('=') == std::string::npos;
    const bool assignment = !value && equals != std::string::npos && equals > 0 && word[0] != '-' &&
                            word.find('/') > equals && word.find('.') > equals;
    out.push_back(assignment ? "--" + word : word);
  }
  return out;
}

}  // namespace

bool is_foreign_command(const std::vector<std::string>& words) {
  const auto command = split_command(words);
  return command && (!command->launchers.empty() || program_of(*command) != nullptr);
}

bool knows_foreign_command(const std::vector<std::string>& words) {
  const auto command = split_command(words);
  return command && !command->script.empty() && program_of(*command) != nullptr;
}

ForeignCommand read_foreign_command(const std::vector<std::string>& words) {
  check_typed(words);
  const auto command = split_command(words);
  TESSERA_REQUIRE(command,
                  Config,
                  fmt::format("\"{}\" is not a command of a program that tessera reads",
                              words.empty() ? "" : words.front()),
                  "docs/coming_from/README.md lists them");
  TESSERA_REQUIRE(!command->script.empty(),
                  Config,
                  fmt::format("{} starts nothing: the script is missing",
                              command->launchers.empty() ? "the command"
                                                         : command->launchers.back().first->name),
                  "name the script behind the options");
  const Program* const program = program_of(*command);
  if (program == nullptr) refuse_unknown_script(command->script);
  TESSERA_REQUIRE(program->refused.empty(),
                  Unsupported,
                  fmt::format("{}: {}", program->title, program->refused),
                  std::string(program->instead));
  Launched launched = read_launchers(*command);

  ForeignCommand out;
  Meaning meaning;
  meaning.program = program->title;
  meaning.script = command->script;
  meaning.problems = std::move(launched.problems);
  meaning.ranks = launched.ranks;
  OptionReader reader(program->tables, meaning);
  meaning.flags = launched.flags;
  std::vector<std::string> rest = program->file == "-" ? with_dashes(command->rest) : command->rest;
  if (const std::string file = take_settings_file(*program, rest); !file.empty()) {
    const json::Value settings = read_settings(file);
    TESSERA_REQUIRE(settings.is_object(),
                    Config,
                    fmt::format("{}: expected settings, found {}", file, settings.type_name()),
                    "write one \"key: value\" a line");
    reader.read_members(settings, "", program->nested);
  }
  reader.read_words(rest, &out.own_words);
  if (!meaning.flags.config.empty()) meaning.source = read_settings(meaning.flags.config);
  reader.add_defaults(meaning.source);
  set_always(program->always, meaning);
  ForeignFlags all = meaning.defaults;
  all.settings.insert(
      all.settings.end(), meaning.flags.settings.begin(), meaning.flags.settings.end());
  if (meaning.problems.empty()) {
    for (std::string& note : apply(all, meaning.source))
      meaning.notes.push_back(std::move(note));
    if (program->rules != nullptr) program->rules(meaning);
  }
  if (!meaning.problems.empty()) throw_problems(meaning);
  out.ranks_note = set_least_ranks(meaning, launched.host_words);

  out.program = meaning.program;
  out.own_words.insert(out.own_words.end(), meaning.own_words.begin(), meaning.own_words.end());
  out.command = meaning.command;
  out.words = std::move(meaning.words);
  out.source = std::move(meaning.source);
  out.ranks = meaning.ranks;
  out.host_words = std::move(launched.host_words);
  out.notes = std::move(meaning.notes);
  out.notes.insert(out.notes.end(), meaning.flags.notes.begin(), meaning.flags.notes.end());
  std::vector<std::string> idle = std::move(launched.idle);
  idle.insert(idle.end(), reader.idle().begin(), reader.idle().end());
  if (!idle.empty()) out.notes.push_back("no effect here: " + text::join(idle, ", "));
  const std::string stem = std::filesystem::path(command->script).stem().string();
  out.name = stem.empty() ? "run" : stem;
  std::replace(out.name.begin(), out.name.end(), ' ', '-');
  return out;
}

namespace {

// The value as indented JSON; behind each leaf a comment with its place.
void write(const json::Value& value, int depth, bool last, std::string& out) {
  const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
  const char* const comma = last ? "" : ",";
  if (!value.is_object() || value.members().empty()) {
    std::string place = value.place.text();
    std::replace(place.begin(), place.end(), '\n', ' ');
    out += fmt::format("{}{}  // {}\n", value.dump(), comma, place);
    return;
  }
  out += "{\n";
  for (std::size_t i = 0; i < value.members().size(); ++i) {
    const auto& [key, member] = value.members()[i];
    out += fmt::format("{}  {}: ", indent, json::Value::string(key).dump());
    write(member, depth + 1, i + 1 == value.members().size(), out);
  }
  out += fmt::format("{}}}{}\n", indent, comma);
}

}  // namespace

std::string with_origins(const json::Value& source) {
  std::string out;
  write(source, 0, true, out);
  return out;
}

}  // namespace tessera::interop
