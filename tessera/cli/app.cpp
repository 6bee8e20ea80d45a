// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/app.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/base/foreign_error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/foreign_program.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/version.h"
#include "tessera/hosts/cluster_launcher.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/interop/foreign_command.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/early_stop.h"
#include "tessera/launch/refusal.h"

namespace tessera::cli {

Registry<Command>& commands() {
  static Registry<Command> registry("command");
  return registry;
}

namespace {

/// An environment variable.
struct Variable {
  const char* name;
  const char* help;  ///< empty: only for tests and set-up
};
constexpr Variable kVariables[] = {
    {"TESSERA_CACHE",
     "cache folder of tokenized data and of downloads by tools/setup.sh [~/.cache/tessera]"},
    {"TESSERA_CUDA_PLUGIN", "file of the plugin for GPUs; none: no plugin [beside libtessera.so]"},
    {"TESSERA_CUDA", "folder of libtorch_cuda.so, for GPUs (run.device) [that of libtorch]"},
    {"TESSERA_ISA",
     "kernel variant: portable, avx2, avx512, avx512_bf16 or amx [the best that the CPU supports]"},
    {"TESSERA_KERNELS",
     "cpu [default], or aten: libtorch's operations, slower, for comparing results"},
    {"TESSERA_MODELS",
     "folders of models, with colons between them, in which a name like owner/model is "
     "looked for; Hugging "
     "Face's cache comes after them"},
    {"TESSERA_DATA",
     "folders of data sets, with colons between them, in which names like owner/data of other "
     "programs' commands are looked for; the caches of Hugging Face come after them"},
    {"TESSERA_MACHINES", "folder of described machines, for tessera plan and tune --device"},
    {"TESSERA_DISK_IO",
     "threads: read and write what rests on a disk by threads, not with io_uring [io_uring where "
     "the build and the kernel have it]"},
    {"TESSERA_LOG", "log level: debug, info, warn or error"},
    {"TESSERA_SECRET_FILE",
     "file with the secret of a job of several hosts that another launcher starts"},
    {"NO_COLOR", "any value disables colours"},
    {"TESSERA_PYTHON", "the Python in which `tessera launch` runs a .py file [python3]"},
    {hosts::kAgentVariable, ""},
    {"TESSERA_PROGRAM", ""},  // read by the Python package
    {"TESSERA_NVML", ""},
    {"TESSERA_GOLDEN", ""},
    {"TESSERA_LIBTORCH", ""}};

std::string overview() {
  std::string out =
      "tessera trains large models on any number of processes and hosts.\n\nusage: tessera COMMAND "
      "[ARGUMENTS]\n\n";
  for (const std::string& name : commands().names()) {
    const Command& command = commands().get(name);
    if (!command.help.empty()) out += fmt::format("  {:<11} {}\n", name, command.help);
  }
  out +=
      "\nHelp for a command: tessera train --help\n"
      "A command of another program behind tessera: tessera torchrun run_clm.py ..., tessera trl "
      "dpo "
      "...\n"
      "Start here:\n"
      "  tessera init nano --data my.txt > my.json\n"
      "  tessera train my.json -n 2\n"
      "  tessera generate runs/my --prompt \"Once\"\n"
      "Environment:\n";
  for (const auto& [name, help] : kVariables) {
    if (*help != '\0') out += fmt::format("  {:<15} {}\n", name, help);
  }
  return out;
}

// Reports misspelt variables, which would otherwise be ignored silently.
void check_environment() {
  std::vector<std::string> known;
  for (const Variable& variable : kVariables)
    known.emplace_back(variable.name);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.substr(0, 8) != "TESSERA_") continue;
    const std::string name(text.substr(0, text.find('=')));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    log::warn("the environment variable " + name + " is not known to tessera; " +
              text::suggestion(name, known));
  }
}

/// `words`: those of the command line; what is said before a command reads its words obeys them.
void set_log_level(const std::vector<std::string>& words) {
  const bool quiet = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "-q" || word == "--quiet";
  });
  show_log(quiet ? log::Level::Error : log::Level::Warning);
  if (quiet) return;
  const char* wanted = std::getenv("TESSERA_LOG");
  if (wanted == nullptr || *wanted == '\0') return;
  const std::string level = text::lower(wanted);
  if (level == "debug") return show_log(log::Level::Debug);
  if (level == "info") return show_log(log::Level::Info);
  if (level == "warn" || level == "warning") return show_log(log::Level::Warning);
  if (level == "error") return show_log(log::Level::Error);
  log::warn(std::string("TESSERA_LOG is \"") + wanted + "\", expected debug, info, warn or error");
}

// DeepSpeed's launcher puts the number of a rank before the given arguments.
std::vector<std::string> after_local_rank(std::vector<std::string> words) {
  while (!words.empty() && (words.front().starts_with("--local_rank=") ||
                            words.front().starts_with("--local-rank="))) {
    std::vector<std::string> rank = {words.front()};
    interop::take_foreign_flags(rank);  // throws if it is not an integer
    words.erase(words.begin());
  }
  return words;
}

// Reports habits from other launchers: flags before the command, a script, a configuration without
// a command.
void refuse_order(const std::vector<std::string>& words) {
  const std::string& first = words.front();
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  refuse_script(first, rest);
  if (commands().has(first)) return;
  if (first.ends_with(".json") || first.ends_with(".hjson")) {
    throw Error(Error::Kind::Config,
                fmt::format("{} is not a command", first),
                fmt::format("type: tessera train {}", text::join(words, " ")));
  }
  if (first.front() != '-') return;
  const auto script = std::find_if(
      words.begin(), words.end(), [](const std::string& word) { return word.ends_with(".py"); });
  if (script != words.end()) refuse_script(*script, words);
  const auto command = std::find_if(
      words.begin(), words.end(), [](const std::string& word) { return commands().has(word); });
  std::vector<std::string> ordered = words;
  std::string name = "train";
  if (command != words.end()) {
    name = *command;
    ordered.erase(ordered.begin() + (command - words.begin()));
  }
  throw Error(Error::Kind::Config,
              fmt::format("{} is before the command", first),
              fmt::format("type: tessera {} {}", name, text::join(ordered, " ")));
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::fputs(overview().c_str(), stderr);
    return exit_code(Error::Kind::Config);
  }
  const std::string& name = words.front();
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(overview().c_str(), stdout);
    return kExitOk;
  }
  if (name == "--version") {
    std::printf("tessera %s\n", kVersion);
    return kExitOk;
  }
  if (!commands().has(name) && interop::is_foreign_command(words))
    return run_foreign_program(words);
  refuse_order(words);
  const Command& command = commands().get(name);
  return command.run({words.begin() + 1, words.end()});
}

/// The job of another launcher of which this process is a rank; nothing if its variables contradict
/// each other, which is an error of its own.
std::optional<launch::Launcher> launcher_of_this_rank() {
  try {
    return hosts::detect_launcher();
  } catch (const Error&) {
    return std::nullopt;
  }
}

int tell(const Error& error) {
  // Every rank of a launcher finds a mistake in the configuration; one reports it.
  const std::optional<launch::Launcher> launcher = launcher_of_this_rank();
  std::optional<launch::Refusal> refusal;
  if (launcher) refusal.emplace(*launcher, error.text());
  if (refusal && !refusal->is_told_here()) return exit_code(error.kind());
  const bool ours = error.kind() == Error::Kind::Bug;
  print_error(ours ? "bug in tessera: " + error.text() : error.text());
  if (ours) {
    std::fprintf(stderr,
                 "  at %s:%d; please report it with the output of: tessera report\n",
                 error.where().file,
                 error.where().line);
  }
  return exit_code(error.kind());
}

/// Checks the command's output: a full disk behind `>` is a failure; a reader that has exited is
/// not.
int after_output(int code) {
  if (code == kExitOk) {
    require_output_written();
  } else {
    std::fflush(stdout);
  }
  return code;
}

int tell_foreign(const std::string& what) {
  return tell(foreign_error(what));
}

}  // namespace
}  // namespace tessera::cli

extern "C" int tessera_main(int argc, char** argv) {
  using namespace tessera;
  // If a file exceeds the size limit, write() fails with an error that has a message and a fix.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    log::set_sink(cli::print_log);
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    cli::set_log_level(words);
    cli::check_environment();
    return cli::after_output(cli::dispatch(cli::after_local_rank(words)));
  } catch (const Error& error) {
    std::fflush(stdout);
    return cli::tell(error);
  } catch (const launch::Stopped& stopped) {
    std::fflush(stdout);
    cli::print_error(stopped.what());
    return stopped.exit_code();
  } catch (const c10::Error& error) {
    return cli::tell_foreign(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return cli::tell(
        Error(Error::Kind::Memory, "out of memory", "use a smaller model, batch or sequence"));
  } catch (const std::exception& error) {
    return cli::tell_foreign(error.what());
  }
}
