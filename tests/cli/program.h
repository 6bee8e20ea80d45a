// SPDX-License-Identifier: Apache-2.0
// Runs the program inside this process: arguments in, text and exit code out.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/cli/app.h"

namespace tessera::cli {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome run_program(std::vector<std::string> words) {
  words.insert(words.begin(), "tessera");
  std::vector<char*> argv;
  for (std::string& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome out;
  out.code = tessera_main(static_cast<int>(words.size()), argv.data());
  out.out = testing::internal::GetCapturedStdout();
  out.err = testing::internal::GetCapturedStderr();
  return out;
}

/// The same in a child of this process, so that programs which start ranks can follow one another:
/// ranks cannot be forked from a process in which tensors were computed. `folder`: for the texts.
inline Outcome run_program_apart(const std::vector<std::string>& words,
                                 const std::filesystem::path& folder) {
  const std::filesystem::path out_file = folder / "stdout.txt", err_file = folder / "stderr.txt";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const bool redirected = std::freopen(out_file.c_str(), "w", stdout) != nullptr &&
                            std::freopen(err_file.c_str(), "w", stderr) != nullptr;
    std::vector<std::string> line = words;
    line.insert(line.begin(), "tessera");
    std::vector<char*> argv;
    for (std::string& word : line)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const int code = redirected ? tessera_main(static_cast<int>(line.size()), argv.data()) : 126;
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Outcome out;
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.out = files::read(out_file);
  out.err = files::read(err_file);
  return out;
}

}  // namespace tessera::cli
