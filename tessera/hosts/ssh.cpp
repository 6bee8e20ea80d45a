// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/ssh.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/hosts/job_end.h"

namespace tessera::hosts {
namespace {

/// Quotes a word for the shell of another host.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word)
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// ssh and its options, up to the name of the host.
std::vector<std::string> ssh_words(const RemoteOptions& options) {
  std::vector<std::string> words = {
      "ssh", "-o", "PasswordAuthentication=no", "-o", "BatchMode=yes"};
  if (options.ssh_port) {
    words.emplace_back("-p");
    words.push_back(std::to_string(*options.ssh_port));
  }
  if (options.launcher_args.starts_with('-')) {
    const std::vector<std::string> extra = launcher_words(options.launcher_args);
    words.insert(words.end(), extra.begin(), extra.end());
  }
  return words;
}

/// Returns the files with variables for the agents. A variable such as LD_PRELOAD runs code on
/// every host. The file of the current folder, which may have come with someone's configuration, is
/// therefore read only if DS_ENV_FILE names it.
std::vector<std::filesystem::path> environment_files() {
  constexpr const char* kUsual = ".deepspeed_env";
  const char* const named = std::getenv("DS_ENV_FILE");
  const char* const home = std::getenv("HOME");
  const bool asked = named != nullptr && *named != '\0';
  const std::string name = asked ? named : kUsual;
  std::vector<std::filesystem::path> files;
  if (home != nullptr) files.push_back(std::filesystem::path(home) / name);
  if (asked) files.emplace_back(name);
  std::error_code unknown;
  std::erase_if(files,
                [&](const auto& path) { return !std::filesystem::is_regular_file(path, unknown); });
  const bool here = !asked && std::filesystem::exists(kUsual, unknown) &&
                    (files.empty() || !std::filesystem::equivalent(files.front(), kUsual, unknown));
  if (here) {
    log::warn_once(fmt::format(
        "{} of the current folder is not read, because its variables can run code on every host; "
        "to read it: export DS_ENV_FILE=\"$PWD/{}\"",
        kUsual,
        kUsual));
  }
  if (files.size() == 2 && std::filesystem::equivalent(files[0], files[1], unknown))
    files.pop_back();
  return files;
}

/// Appends the lines `NAME=VALUE` of a file.
void add_assignments_of(const std::filesystem::path& path, std::vector<std::string>& to) {
  struct stat facts {};
  const bool known = stat(path.c_str(), &facts) == 0;
  TESSERA_REQUIRE(
      known && (facts.st_uid == geteuid() || facts.st_uid == 0) && (facts.st_mode & S_IWOTH) == 0,
      Config,
      fmt::format("{}: another user can write the file, and its variables can run code on every "
                  "host",
                  path.string()),
      fmt::format("make it yours alone (chown, chmod o-w {}), or name another file with "
                  "DS_ENV_FILE",
                  path.string()));
  std::size_t number = 0;
  for (const std::string& raw : text::split(files::read(path), '\n')) {
    ++number;
    const std::string line(text::trim(raw));
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t equals = line.find('=');
    const bool named_well = equals != std::string::npos && equals > 0 &&
                            line.find_first_not_of(
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrst"
                                "uvwxyz0123456789_") == equals;
    TESSERA_REQUIRE(named_well,
                    Config,
                    fmt::format("{}:{}: expected NAME=VALUE", path.string(), number),
                    "write one variable a line");
    to.push_back(line);
  }
}

}  // namespace

std::vector<std::string> launcher_words(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : text::split(text, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

std::string shell_command(const RemoteOptions& options,
                          const std::vector<std::string>& environment,
                          const char* command) {
  std::string line;
  if (!options.launcher_args.empty() && !options.launcher_args.starts_with('-'))
    line = options.launcher_args + " && ";
  line += "exec env";
  for (const std::string& assignment : environment)
    line += " " + quoted(assignment);
  return fmt::format("{} {} {}", line, quoted(options.program), command);
}

std::vector<std::string> ssh_probe(const RemoteOptions& options, const std::string& host) {
  std::vector<std::string> words = ssh_words(options);
  words.insert(words.end(), {"-o", "ConnectTimeout=5", host, quoted(options.program) + " version"});
  return words;
}

std::vector<std::string> ssh_command(const RemoteOptions& options,
                                     const std::string& host,
                                     const std::string& folder,
                                     const std::vector<std::string>& environment,
                                     const char* command) {
  std::vector<std::string> words = ssh_words(options);
  words.push_back(host);
  words.push_back(fmt::format("cd {} || exit {}; {}",
                              quoted(folder),
                              kNoFolder,
                              shell_command(options, environment, command)));
  return words;
}

std::vector<std::string> passed_environment() {
  constexpr std::array<std::string_view, 10> kPrefixes = {"NCCL",
                                                          "GLOO",
                                                          "PYTHON",
                                                          "MV2",
                                                          "UCX",
                                                          "MLFLOW",
                                                          "OMP",
                                                          "MKL",
                                                          "TESSERA_",
                                                          "LD_LIBRARY_PATH="};
  std::vector<std::string> passed;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view assignment = *entry;
    const bool wanted =
        std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view prefix) {
          return assignment.starts_with(prefix);
        });
    if (wanted) passed.emplace_back(assignment);
  }
  for (const std::filesystem::path& path : environment_files())
    add_assignments_of(path, passed);
  return passed;
}

}  // namespace tessera::hosts
