// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/command_words.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/interop/option_table.h"

namespace tessera::interop {
namespace {

// "/opt/bin/python3.11" -> "python".
std::string program_name(const std::string& word) {
  std::string name = std::filesystem::path(word).filename().string();
  if (name.starts_with("python") && std::all_of(name.begin() + 6, name.end(), [](char c) {
        return c == '.' || (c >= '0' && c <= '9');
      }))
    return "python";
  if (name == "mpiexec" || name == "mpirun.openmpi") return "mpirun";
  if (name == "lmf") return "llamafactory-cli";
  if (name == "deepspeed.py") return "deepspeed";
  return name;
}

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// The launcher at words[at], and the number of its words.
std::pair<const LauncherProgram*, std::size_t> launcher_at(const std::vector<std::string>& words,
                                                           std::size_t at) {
  const std::string name = program_name(words[at]);
  for (const LauncherProgram& launcher : launchers()) {
    const std::vector<std::string> parts = text::split(launcher.name, ' ');
    if (parts.front() != name || at + parts.size() > words.size()) continue;
    bool same = true;
    for (std::size_t i = 1; i < parts.size(); ++i)
      same = same && words[at + i] == parts[i];
    if (same) return {&launcher, parts.size()};
  }
  return {nullptr, 0};
}

// torch's launchers as modules.
const LauncherProgram* launcher_module(const std::string& module) {
  const bool torch = module == "torch.distributed.run" || module == "torch.distributed.launch";
  const bool accelerate = module == "accelerate.commands.launch";
  const bool deepspeed = module == "deepspeed.launcher.runner";
  for (const LauncherProgram& launcher : launchers()) {
    if ((torch && launcher.name == "torchrun") ||
        (accelerate && launcher.name == "accelerate launch") ||
        (deepspeed && launcher.name == "deepspeed"))
      return &launcher;
  }
  return nullptr;
}

bool has_name(const Program& program, std::string_view name) {
  return std::find(program.names.begin(), program.names.end(), name) != program.names.end();
}

bool is_known(std::string_view name) {
  const std::vector<Program>& all = programs();
  return std::any_of(
      all.begin(), all.end(), [&](const Program& one) { return has_name(one, name); });
}

// The number of words of a program at words[at] that is not a script, "trl sft"; 0: none.
std::size_t program_words(const std::vector<std::string>& words, std::size_t at) {
  std::string name = program_name(words[at]);
  if (at + 1 < words.size() && is_known(name + " " + words[at + 1])) return 2;
  return is_known(name) ? 1 : 0;
}

// Advances past the options of a launcher; returns whether a module follows.
bool skip_options(const LauncherProgram& launcher,
                  const std::vector<std::string>& words,
                  std::size_t& at) {
  const OptionTable& table = option_table(launcher.table);
  bool module = false;
  while (at < words.size() && words[at].starts_with('-') && words[at].size() > 1) {
    const std::string& word = words[at++];
    if (word == "--") break;
    if (word == "-m" || word == "--module") {
      module = true;
      break;
    }
    const Option* const option = table.find(word.substr(0, word.find('=')));
    const bool glued = word.size() > 2 && word[1] != '-' && word[2] >= '0' && word[2] <= '9';
    if (word.find('=') != std::string::npos || glued || at >= words.size()) continue;
    const bool switches =
        option != nullptr && (option->form == Form::Nothing || option->form == Form::Switch);
    const bool next_is_value = !words[at].starts_with('-') && !words[at].ends_with(".py");
    if (!switches && (option != nullptr || next_is_value)) ++at;
  }
  return module;
}

std::string base_name(const std::string& script) {
  return std::filesystem::path(script).filename().string();
}

bool gives_any(const std::vector<std::string>& words, const std::vector<std::string_view>& marks) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    // A mark with a slash is the folder of a file of settings.
    if (!word.starts_with("-") && word.ends_with(".py")) {
      return std::any_of(marks.begin(), marks.end(), [&](std::string_view mark) {
        return mark.ends_with('/') && word.find(mark) != std::string::npos;
      });
    }
    if (!word.starts_with("--")) return false;
    const std::string name = option_name(word.substr(0, word.find('=')));
    return std::find(marks.begin(), marks.end(), name) != marks.end();
  });
}

// The program in whose folder a command is typed: DeepSpeed-Chat's main.py is started in that of
// its step. nullptr: none, or several.
const Program* program_of_folder(const std::string& name) {
  std::error_code ignored;
  const std::filesystem::path here = std::filesystem::current_path(ignored);
  const Program* found = nullptr;
  for (const Program& program : programs()) {
    const bool inside = std::any_of(here.begin(), here.end(), [&](const auto& part) {
      return std::find(program.folders.begin(), program.folders.end(), part.string()) !=
             program.folders.end();
    });
    if (!has_name(program, name) || !inside) continue;
    if (found != nullptr) return nullptr;
    found = &program;
  }
  return found;
}

}  // namespace

std::optional<CommandWords> split_command(const std::vector<std::string>& words) {
  CommandWords out;
  std::size_t at = 0;
  while (at < words.size() && is_assignment(words[at]))
    ++at;
  while (at < words.size()) {
    const auto [launcher, count] = launcher_at(words, at);
    if (launcher != nullptr) {
      const std::size_t begin = at += count;
      const LauncherProgram* started = launcher;
      const bool module = skip_options(*launcher, words, at);
      out.launchers.emplace_back(
          started,
          std::vector<std::string>(words.begin() + static_cast<std::ptrdiff_t>(begin),
                                   words.begin() + static_cast<std::ptrdiff_t>(at)));
      if (module) out.launchers.back().second.pop_back();
      if (!module || at >= words.size()) continue;
      if (const LauncherProgram* const inner = launcher_module(words[at])) {
        const std::size_t first = ++at;
        const bool script_module = skip_options(*inner, words, at);
        out.launchers.emplace_back(
            inner,
            std::vector<std::string>(words.begin() + static_cast<std::ptrdiff_t>(first),
                                     words.begin() + static_cast<std::ptrdiff_t>(at)));
        if (!script_module) continue;
        out.launchers.back().second.pop_back();
      }
      if (at < words.size()) {
        out.script = words[at];
        out.rest.assign(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
      }
      return out;
    }
    std::size_t length = program_words(words, at);
    if (length == 0 && (words[at].ends_with(".py") || !out.launchers.empty())) length = 1;
    if (length == 0) return std::nullopt;
    out.script = length == 2 ? program_name(words[at]) + " " + words[at + 1] : words[at];
    out.rest.assign(words.begin() + static_cast<std::ptrdiff_t>(at + length), words.end());
    return out;
  }
  if (out.launchers.empty()) return std::nullopt;
  return out;
}

const Program* program_of(const CommandWords& command) {
  const std::string name =
      command.script.find(' ') != std::string::npos ? command.script : base_name(command.script);
  std::vector<const Program*> best;
  int most = -1;
  for (const Program& program : programs()) {
    if (!has_name(program, name)) continue;
    int score = program.folders.empty() && program.marks.empty() ? 1 : 0;
    for (const std::string_view folder : program.folders) {
      if (command.script.find(folder) != std::string::npos) score = 3;
    }
    if (score == 0 && gives_any(command.rest, program.marks)) score = 2;
    if (score == 0) continue;  // another program's script of the same name
    if (score > most) best.clear();
    most = std::max(most, score);
    if (score == most) best.push_back(&program);
  }
  if (best.empty()) return program_of_folder(name);
  if (best.size() == 1 || most == 1) return best.front();
  std::vector<std::string> titles;
  for (const Program* program : best)
    titles.emplace_back(program->title);
  throw Error(Error::Kind::Config,
              fmt::format("{}: several programs have a script of this name: {}",
                          command.script,
                          text::join(titles, ", ")),
              fmt::format("name it with its folder, such as {}/{}",
                          best.front()->folders.empty() ? "FOLDER" : best.front()->folders.front(),
                          name));
}

void check_typed(const std::vector<std::string>& words) {
  struct Mark {
    std::string_view bytes, name, plain;
  };
  static constexpr auto kMarks = std::to_array<Mark>({{"\xE2\x80\x9C", "quote", "\""},
                                                      {"\xE2\x80\x9D", "quote", "\""},
                                                      {"\xE2\x80\x98", "quote", "'"},
                                                      {"\xE2\x80\x99", "quote", "'"}});
  for (const std::string& word : words) {
    for (const auto& [bytes, name, plain] : kMarks) {
      TESSERA_REQUIRE(
          !word.starts_with(bytes) && !word.ends_with(bytes),
          Config,
          fmt::format("{} has a typographic {} ({}), as web pages print it", word, name, bytes),
          fmt::format("type {} instead", plain));
    }
    for (const std::string_view dash : {"\xE2\x80\x93", "\xE2\x80\x94", "\xE2\x88\x92"}) {
      TESSERA_REQUIRE(!word.starts_with(dash),
                      Config,
                      fmt::format("{} begins with a typographic dash, as web pages print it", word),
                      "type -- instead");
    }
    const std::size_t dollar = word.find('$');
    const char next =
        dollar != std::string::npos && dollar + 1 < word.size() ? word[dollar + 1] : '\0';
    // In the middle of a word a small letter may belong to a pattern.
    const bool begins = dollar == 0 || (dollar < word.size() && dollar > 0 &&
                                        (word[dollar - 1] == '/' || word[dollar - 1] == '='));
    const bool variable = next == '{' || next == '_' || (next >= 'A' && next <= 'Z') ||
                          (begins && ((next >= 'a' && next <= 'z') ||
                                      (next >= '0' && next <= '9') || next == '@' || next == '('));
    TESSERA_REQUIRE(
        !variable,
        Config,
        fmt::format("the shell variable in {} is left in", word),
        "set it in the shell and leave it outside of single quotes, or write its value");
  }
}

}  // namespace tessera::interop
