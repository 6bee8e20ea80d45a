// SPDX-License-Identifier: Apache-2.0
// Runs the program inside this process: arguments in, text and exit code out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace tessera::cli
