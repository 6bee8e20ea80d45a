// SPDX-License-Identifier: Apache-2.0
// tessera completion, tessera man: completion for shells and a manual page, made from the same
// lists as --help.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/version.h"
#include "tessera/interop/foreign_flags.h"

namespace tessera::cli {
namespace {

/// Commands whose first word selects an action.
struct Group {
  std::string_view command;
  std::vector<std::string> actions;
};
const std::vector<Group>& groups() {
  static const std::vector<Group> all = {{"adapter", {"merge", "extract", "list"}},
                                         {"bench", {"step", "comm", "io"}},
                                         {"checkpoint", {"verify", "merge", "list"}},
                                         {"config", {"explain", "convert", "schema", "docs"}},
                                         {"tokenizer", {"train", "inspect"}},
                                         {"completion", {"bash", "zsh", "fish"}}};
  return all;
}

std::vector<std::string> actions_of(const std::string& command) {
  for (const Group& group : groups()) {
    if (group.command == command) return group.actions;
  }
  return {};
}

/// One entry for each command, with the options of all its actions.
std::vector<CommandDoc> all_commands() {
  const Collecting collecting;
  std::vector<CommandDoc> out;
  for (const std::string& name : commands().names()) {
    std::size_t before = collecting.found().size();
    CommandDoc doc{name, commands().get(name).help + "\n", {}};
    std::vector<std::vector<std::string>> lines = {{}};
    for (const std::string& action : actions_of(name))
      lines.push_back({action});
    std::vector<std::string> helps;
    for (const std::vector<std::string>& line : lines) {
      try {
        commands().get(name).run(line);
      } catch (const Error&) {
        continue;  // it requires an action
      }
      for (; before < collecting.found().size(); ++before) {
        const CommandDoc& found = collecting.found()[before];
        if (std::find(helps.begin(), helps.end(), found.help) != helps.end()) continue;
        helps.push_back(found.help);
        doc.options.insert(doc.options.end(), found.options.begin(), found.options.end());
      }
    }
    if (!helps.empty()) doc.help = text::join(helps, "\n");
    if (name == "train") {
      for (const std::string& flag : interop::foreign_flag_names())
        doc.options.push_back({{flag}, true, "sets the corresponding key"});
    }
    if (!commands().get(name).help.empty()) out.push_back(std::move(doc));
  }
  return out;
}

/// Names that begin with a dash, each once.
std::vector<std::string> flags_of(const CommandDoc& doc) {
  std::vector<std::string> out;
  for (const CommandDoc::Option& option : doc.options) {
    for (const std::string& name : option.names) {
      if (name.starts_with("-") && std::find(out.begin(), out.end(), name) == out.end())
        out.push_back(name);
    }
  }
  return out;
}

std::string words_of(const CommandDoc& doc) {
  std::vector<std::string> words = actions_of(doc.name);
  for (std::string& flag : flags_of(doc))
    words.push_back(std::move(flag));
  return text::join(words, " ");
}

std::string names_of_all(const std::vector<CommandDoc>& all) {
  std::vector<std::string> names;
  for (const CommandDoc& doc : all)
    names.push_back(doc.name);
  return text::join(names, " ");
}

/// zsh loads bash's completion.
std::string bash(const std::vector<CommandDoc>& all, bool zsh) {
  std::string out = zsh ? "#compdef tessera\nautoload -U +X bashcompinit && bashcompinit\n"
                        : "# tessera completion bash > /etc/bash_completion.d/tessera\n";
  out +=
      "_tessera() {\n  local word=${COMP_WORDS[COMP_CWORD]} words\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=\"" +
      names_of_all(all) + "\"\n  else\n    case ${COMP_WORDS[1]} in\n";
  for (const CommandDoc& doc : all)
    out += fmt::format("      {}) words=\"{}\" ;;\n", doc.name, words_of(doc));
  return out +
         "    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
         "complete -o default -F _tessera tessera\n";
}

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

std::string fish(const std::vector<CommandDoc>& all) {
  std::string out = "# tessera completion fish > ~/.config/fish/completions/tessera.fish\n";
  for (const CommandDoc& doc : all) {
    out += fmt::format("complete -c tessera -n __fish_use_subcommand -f -a {} -d {}\n",
                       doc.name,
                       fish_quoted(commands().get(doc.name).help));
    for (const std::string& action : actions_of(doc.name)) {
      out += fmt::format(
          "complete -c tessera -n '__fish_seen_subcommand_from {}' -a {}\n", doc.name, action);
    }
    for (const CommandDoc::Option& option : doc.options) {
      for (const std::string& name : option.names) {
        if (!name.starts_with("-")) continue;
        const bool brief = !name.starts_with("--");
        out +=
            fmt::format("complete -c tessera -n '__fish_seen_subcommand_from {}' -{} {}{} -d {}\n",
                        doc.name,
                        brief ? "s" : "l",
                        name.substr(brief ? 1 : 2),
                        option.has_value ? " -r" : "",
                        fish_quoted(option.help));
      }
    }
  }
  return out;
}

/// roff would interpret a line that begins with a dot or a quote.
std::string roff(const std::string& text) {
  std::string out;
  for (const std::string& line : text::split(text, '\n')) {
    if (line.starts_with(".") || line.starts_with("'")) out += "\\&";
    for (const char c : line)
      out += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
    out += '\n';
  }
  return out;
}

std::string manual(const std::vector<CommandDoc>& all) {
  std::string out = fmt::format(
      ".TH TESSERA 1 \"\" \"tessera {}\" \"User commands\"\n.SH NAME\ntessera \\- train large "
      "models\n"
      ".SH SYNOPSIS\n.B tessera\nCOMMAND [ARGUMENTS]\n.SH COMMANDS\n",
      kVersion);
  for (const CommandDoc& doc : all) {
    out += fmt::format(".SS tessera {}\n.nf\n{}.fi\n", doc.name, roff(doc.help));
  }
  return out +
         ".SH EXIT STATUS\n0 ok, 2 usage or configuration, 3 data, 4 checkpoint or format, 5 "
         "memory, 6 communication, 7 diverged, 8 environment, 9 trained, but something that was "
         "asked for was not done, 70 a bug, 75 and 130 stopped and saved.\n";
}

int completion(const std::vector<std::string>& line) {
  std::string shell;
  Common common;  // only the common options
  Arguments arguments(
      "completion",
      "Prints a script that completes commands and options in a shell.",
      {"tessera completion bash > ~/.local/share/bash-completion/completions/tessera",
       "tessera completion zsh > ~/.zfunc/_tessera",
       "tessera completion fish > ~/.config/fish/completions/tessera.fish"});
  arguments.positional("SHELL", &shell, "bash, zsh or fish");
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  const std::vector<std::string> known = actions_of("completion");
  TESSERA_REQUIRE(std::find(known.begin(), known.end(), shell) != known.end(),
                  Config,
                  fmt::format("no completion for the shell \"{}\"", shell),
                  text::suggestion(shell, known));
  const std::vector<CommandDoc> all = all_commands();
  std::fputs((shell == "fish" ? fish(all) : bash(all, shell == "zsh")).c_str(), stdout);
  return kExitOk;
}

int man(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments("man",
                      "Prints the manual page of all commands.",
                      {"tessera man > tessera.1", "tessera man | man -l -"});
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  std::fputs(manual(all_commands()).c_str(), stdout);
  return kExitOk;
}

TESSERA_COMMAND("completion", "print a completion script for bash, zsh or fish", completion);
TESSERA_COMMAND("man", "print the manual page", man);

}  // namespace
}  // namespace tessera::cli
