// SPDX-License-Identifier: Apache-2.0
// Language modelling: windows of a token stream, or documents, whose labels are the next tokens.
#include "tessera/tasks/task.h"
#include "tessera/tasks/token_task.h"

namespace tessera::tasks {
namespace {

/// The task has no parameters: the section `data` defines how text is divided into samples.
struct NoOptions {
  void describe(config::Fields& /*fields*/) {}
};

class Pretrain final : public Task {
 public:
  [[nodiscard]] std::string objective() const override { return "causal_lm"; }
  [[nodiscard]] TokenLabels token_labels() const override { return TokenLabels::NextToken; }
  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] data::Datasets open(const DataRequest& request) const override {
    return open_tokens(request, request.sequence_length, {.seed = request.seed});
  }
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override {
    return open_held_out_tokens(request, names, key, request.sequence_length);
  }
};

std::unique_ptr<Task> make_pretrain(const json::Value& params,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  NoOptions options;
  config::read(params, options, problems, origins);
  return std::make_unique<Pretrain>();
}

TESSERA_TASK("pretrain", make_pretrain);

}  // namespace
}  // namespace tessera::tasks
