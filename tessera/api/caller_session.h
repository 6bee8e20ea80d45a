// SPDX-License-Identifier: Apache-2.0
// A training whose blocks the caller computes, on the rank that the caller's process is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/api/caller_model.h"
#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/rank_in_process.h"
#include "tessera/engine/run_folder.h"
#include "tessera/engine/trainer.h"
#include "tessera/planner/plan.h"

namespace tessera::api {

/// The values with which a caller opens a session.
struct CallerRequest {
  std::string config, name;
  std::vector<std::string> changes;              ///< of keys, as for --set: "trainer.max_steps=20"
  std::shared_ptr<CallerModel> model;            ///< with the first values of the parameters
  std::optional<std::int64_t> size, validation;  ///< samples; absent: unknown, or none
};

/// Used by one thread. Methods are collective, except the accessors and write_result().
class CallerSession {
 public:
  /// Plans, joins the job and sets the weights: those of rank 0, or of the newest checkpoint of the
  /// run folder. There is one if the configuration names run.dir. Throws the errors of each step.
  explicit CallerSession(const CallerRequest& request);
  ~CallerSession();
  CallerSession(const CallerSession&) = delete;
  CallerSession& operator=(const CallerSession&) = delete;

  [[nodiscard]] json::Value described() const;
  [[nodiscard]] const at::Tensor& parameter(int block, int index);
  json::Value step();
  json::Value evaluate();
  void gather();
  std::filesystem::path save(const std::filesystem::path& folder);
  void load(const std::filesystem::path& folder);
  /// Returns the bytes of every rank, in the order of the ranks.
  std::vector<std::string> all_gather(std::string_view bytes);
  /// Returns the exit code of the training.
  int finish();

 private:
  void open_folder();
  void start(const CallerRequest& request);
  void note(const std::string& state, int code);

  std::optional<planner::PlacedPlan> plan_;
  std::shared_ptr<data::Datasets> data_;
  engine::RankInProcess* rank_ = nullptr;
  std::unique_ptr<const engine::RunFolder> folder_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Trainer> trainer_;
  std::optional<int> finished_;
  std::int64_t evaluations_ = 0;  ///< since this session was opened
};

/// Ends this process's part of the job, if a session has joined one.
int end_rank_of_process(int code, const std::string& failure);

}  // namespace tessera::api
