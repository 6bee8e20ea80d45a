// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/foreign_program.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"

namespace tessera::cli {
namespace {

/// The programs for which `tessera shell` defines functions.
constexpr const char* kShellNames =
    "torchrun python python3 accelerate deepspeed colossalai trl axolotl llamafactory-cli";

int shell(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments(
      "shell",
      "Prints functions for bash and zsh that run the commands of other programs "
      "with tessera: torchrun, python, accelerate, deepspeed, trl and others. A "
      "script that tessera does not know is run by the program itself.",
      {"source <(tessera shell)", "source <(tessera shell); bash -c 'source run.sh'"});
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  std::printf(
      "__tessera_or() {\n"
      "  if command tessera knows -- \"$@\" 2>/dev/null; then command tessera \"$@\"; "
      "else command \"$@\"; fi\n"
      "}\n");
  for (const std::string& name : text::split(kShellNames, ' '))
    std::printf("%s() { __tessera_or %s \"$@\"; }\n", name.c_str(), name.c_str());
  // Scripts that are started by bash have the functions, too; names with "-" cannot be exported.
  std::printf("[ -z \"${BASH_VERSION:-}\" ] || export -f __tessera_or");
  for (const std::string& name : text::split(kShellNames, ' ')) {
    if (name.find('-') == std::string::npos) std::printf(" %s", name.c_str());
  }
  std::printf("\n");
  return kExitOk;
}

std::vector<std::string> without_dashes(const std::vector<std::string>& line) {
  const bool dashes = !line.empty() && line.front() == "--";
  return {line.begin() + (dashes ? 1 : 0), line.end()};
}

/// Exits with 0 if tessera knows the script of a command; prints nothing.
int knows(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments(
      "knows",
      "Exits with 0 if the script or program of a command is known, else with 1. The "
      "functions of tessera shell ask it.",
      {"tessera knows -- python run_clm.py"});
  arguments.common(common);
  if (line.empty() || line.front() != "--") return arguments.parse(line) ? 1 : kExitOk;
  bool known = false;
  try {
    known = interop::knows_foreign_command(without_dashes(line));
  } catch (const Error&) {
    known = true;  // several programs have a script of the name, which the command says
  }
  return known ? kExitOk : 1;
}

}  // namespace

int run_foreign_program(const std::vector<std::string>& words) {
  const interop::ForeignCommand command = interop::read_foreign_command(words);
  if (command.command == "train") return commands().get("train").run(words);
  for (const std::string& note : command.notes)
    log::warn(note);
  std::vector<std::string> own = command.words;
  own.insert(own.end(), command.own_words.begin(), command.own_words.end());
  return commands().get(command.command).run(own);
}

std::vector<std::string> meaning_lines(const interop::ForeignCommand& command) {
  std::vector<std::string> out = {fmt::format("command     {}", command.program)};
  const auto leaves = json::leaves(command.source);
  std::size_t width = 0;
  std::vector<std::string> left;
  for (const auto& [path, value] : leaves) {
    left.push_back(fmt::format("  {} {}", path, value.dump()));
    if (left.back().size() <= 60) width = std::max(width, left.back().size());
  }
  for (std::size_t i = 0; i < leaves.size(); ++i)
    out.push_back(
        text::printable(fmt::format("{:<{}}  {}", left[i], width, leaves[i].second.place.text())));
  return out;
}

int convert_command(const std::vector<std::string>& words) {
  const interop::ForeignCommand command = interop::read_foreign_command(without_dashes(words));
  for (const std::string& note : command.notes)
    log::warn(note);
  if (!command.ranks_note.empty()) log::warn(command.ranks_note);
  if (command.command != "train") {
    std::printf("tessera %s %s\n", command.command.c_str(), text::join(command.words, " ").c_str());
    return kExitOk;
  }
  std::string ranks;
  if (command.ranks) ranks = fmt::format(" -n {}", *command.ranks);
  std::printf("// %s. Train it with: tessera train FILE%s\n%s",
              command.program.c_str(),
              ranks.c_str(),
              interop::with_origins(command.source).c_str());
  return kExitOk;
}

TESSERA_COMMAND("shell", "print functions that run other programs' commands with tessera", shell);
TESSERA_COMMAND("knows", "", knows);

}  // namespace tessera::cli
