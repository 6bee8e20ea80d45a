// SPDX-License-Identifier: Apache-2.0
// The face of the library: plans, trainings and models as opaque types. Including it costs less
// than a second, because it includes neither libtorch nor a header of the floors below; a program
// that needs more includes those headers too (docs/library.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::api {

/// The plan of a configuration: every setting, checked before anything starts. A value that
/// never changes; a copy costs nothing. Threads: any.
class Plan {
 public:
  /// Resolves a configuration (docs/config.md, as JSON with comments) for `ranks` ranks. `name`
  /// stands for the file in messages. Throws all problems together as one Error{Config}.
  explicit Plan(const std::string& json,
                int ranks = 1,
                const std::string& name = "the configuration");
  /// The same for a file; throws Error{Io} if it cannot be read.
  static Plan of_file(const std::filesystem::path& file, int ranks = 1);
  /// Returns the plan of the same configuration with one key changed: "trainer.max_steps=20". The
  /// value is JSON, or a string if it is not JSON.
  [[nodiscard]] Plan with(const std::string& assignment) const;

  /// Returns the resolved configuration as JSON. It gives the same plan again.
  [[nodiscard]] std::string json() const;
  /// Returns what a reader of the configuration should know: settings without effect, and values
  /// that were derived.
  [[nodiscard]] const std::vector<std::string>& notes() const;
  [[nodiscard]] int ranks() const;

 private:
  friend class Training;
  friend int run(const Plan& plan, const struct RunOptions& options);
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

/// The changes that a training or a model may make in the caller's process.
struct Start {
  /// Threads of libtorch's kernels in this process; 0: those of the plan, or all usable cores for a
  /// model. Results depend on their number, so a plan's own number repeats the results of `tessera
  /// train`.
  int threads = 0;
  /// Installs tessera's allocator for the CPU tensors of the whole process, which is faster and
  /// counts memory. Leave it off if the process has CPU tensors already.
  bool caching_allocator = false;
};

struct Step {
  std::int64_t number = 0;  ///< counted from 1
  double loss = 0.0;        ///< before the update, over the global batch
  double learning_rate = 0.0, gradient_norm = 0.0;
  std::int64_t tokens = 0;  ///< so far
  bool skipped = false;     ///< no update: the gradient was not finite
  /// The terms of the loss by name.
  std::map<std::string, double> metrics;
};

struct Evaluation {
  double loss = 0.0;
  std::map<std::string, double> metrics;
};

/// A training of one rank in the caller's process. Nothing is forked, no signal handler is set, and
/// nothing is printed. Used by one thread; several trainings may exist in a process.
class Training {
 public:
  /// Opens the data and initializes the weights. Throws Error{Config} for a plan of several ranks,
  /// which run() trains.
  explicit Training(const Plan& plan, const Start& start = {});
  ~Training();
  Training(Training&& other) noexcept;
  Training& operator=(Training&& other) noexcept;

  /// Makes one update. Throws Error{Numeric} if the training diverges, as the plan says.
  Step step();
  [[nodiscard]] std::int64_t steps() const;  ///< made so far
  [[nodiscard]] std::int64_t max_steps() const;
  [[nodiscard]] bool done() const { return steps() >= max_steps(); }
  /// Evaluates on the validation data. Throws Error{Config} without it.
  Evaluation evaluate();
  /// Lets the model continue eval.prompt.
  std::string sample();
  /// Writes a checkpoint under `folder` and returns its own folder. Throws Error{Io}.
  std::filesystem::path save(const std::filesystem::path& folder);
  /// Continues from a checkpoint of any layout: its folder, or the folder that contains
  /// checkpoints, of which the newest one counts. Throws Error{Format} if there is none.
  void load(const std::filesystem::path& folder);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

struct RunOptions {
  /// Receives the lines of a training's progress, on the first rank; empty: none.
  std::function<void(std::string_view)> print = {};
  bool dry_run = false;  ///< stops before the ranks start
};
/// Trains as `tessera train` does: run folder, resume, evaluations, checkpoints, ranks as processes
/// of this host. Returns the exit code. Throws the errors that are found before a rank starts. The
/// ranks are forked: call it before the first ATen operation of the process.
int run(const Plan& plan, const RunOptions& options = {});

struct Sampling {
  std::int64_t max_new_tokens = 100;
  double temperature = 1.0;  ///< 0: always the most likely token
  std::int64_t top_k = 0;    ///< 0: all tokens
  double top_p = 1.0;
  std::uint64_t seed = 1234;
};

/// A trained model in the caller's process. Used by one thread.
class Model {
 public:
  /// Reads a run, a checkpoint or a Hugging Face folder. Throws Error{Format} if there is nothing
  /// to read or it is damaged, and Error{Memory} if it is too large.
  explicit Model(const std::filesystem::path& path, const Start& start = {});
  ~Model();
  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;

  /// Continues `prompt`, or answers it with an encoder-decoder model, in valid UTF-8. Throws
  /// Error{Unsupported} for a model that does not write text.
  std::string generate(const std::string& prompt, const Sampling& sampling = {});
  /// Returns the natural logarithms of the probabilities of the tokens of `text`, each given those
  /// before it. The first token has none, unless the tokenizer puts a beginning before it.
  std::vector<double> log_probabilities(const std::string& text);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera::api
