// SPDX-License-Identifier: Apache-2.0
// Files of records, and tasks made from JSON.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks::test {

/// A temporary folder with a short function that writes files into it.
class Folder {
 public:
  [[nodiscard]] std::string write(const std::string& name, std::string_view content) const {
    const std::filesystem::path path = temp_.path() / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

 private:
  files::TempDir temp_;
};

inline Error error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("no error");
}

inline std::unique_ptr<Task> task_of(const std::string& type, const std::string& params = "{}") {
  TaskOptions options;
  options.type = type;
  options.params = json::parse(params, "test");
  config::Problems problems;
  auto task = make_task(options, problems);
  problems.raise();
  return task;
}

inline const text::Tokenizer& byte() {
  static const text::TokenizerPtr tokenizer = text::make_tokenizer({.type = "byte"});
  return *tokenizer;
}

inline data::Datasets open(const Task& task,
                           const data::DataOptions& options,
                           std::int64_t length,
                           std::int64_t min_samples = 1) {
  return task.open({.options = options,
                    .tokenizer = byte(),
                    .vocab_size = 256,
                    .sequence_length = length,
                    .min_samples = min_samples,
                    .how = {}});
}

/// The values of an int64 tensor of a sample.
inline std::vector<std::int64_t> values(const data::Dataset& dataset,
                                        std::int64_t index,
                                        const char* name) {
  data::Sample sample(dataset, index);
  const auto values = sample.values<std::int64_t>(name);
  return {values.begin(), values.end()};
}

using Ids = std::vector<std::int64_t>;

/// The values of an int64 tensor of the sample at a position of an epoch, as training reads it.
inline Ids values_in_epoch(const data::Dataset& train,
                           std::int64_t epoch,
                           std::int64_t position,
                           const char* name) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> tensors;
  for (const data::TensorSpec& spec : train.tensors())
    memory.emplace_back(spec.bytes());
  for (auto& bytes : memory)
    tensors.push_back(bytes.data());
  data::SampleWriter writer(train, tensors);
  writer.read(position, 0, epoch * train.size() + position);
  const auto values = writer.tensor<std::int64_t>(name);
  return {values.begin(), values.end()};
}

/// Base of tests of a task on a file of records, which is in a folder of the test.
class RecordTest : public ::testing::Test {
 protected:
  data::DataOptions options(std::string_view records, const char* name = "train.jsonl") {
    data::DataOptions out;
    out.train = {folder_.write(name, records)};
    return out;
  }
  /// The error of opening the records with the task.
  Error refusal_of(const std::string& task,
                   std::string_view records,
                   std::int64_t length,
                   const std::string& params = "{}") {
    const data::DataOptions data = options(records);
    return error_of([&] { open(*task_of(task, params), data, length); });
  }
  Folder folder_;
};

}  // namespace tessera::tasks::test
