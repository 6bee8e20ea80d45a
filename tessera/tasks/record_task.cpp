// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/record_task.h"

#include <optional>
#include <utility>

namespace tessera::tasks {

namespace {

/// A copy of a request that lives as long as a reader of streamed records.
struct KeptRequest {
  data::DataOptions options;
  data::TokenizeOptions how;
  std::optional<json::Value> model;
  DataRequest request;

  explicit KeptRequest(const DataRequest& from)
      : options(from.options),
        how(from.how),
        model(from.model != nullptr ? std::optional(*from.model) : std::nullopt),
        request{.options = options,
                .tokenizer = from.tokenizer,
                .vocab_size = from.vocab_size,
                .sequence_length = from.sequence_length,
                .min_samples = from.min_samples,
                .how = how,
                .model = model ? &*model : nullptr,
                .model_folder = from.model_folder,
                .tokenizer_folder = from.tokenizer_folder,
                .predict = from.predict,
                .seed = from.seed,
                .micro_batch = from.micro_batch} {}
  KeptRequest(const KeptRequest&) = delete;
  KeptRequest& operator=(const KeptRequest&) = delete;
};

}  // namespace

data::Datasets open_task_records(const DataRequest& request,
                                 const std::function<ReadRecords(const DataRequest&)>& reader,
                                 const char* noun,
                                 const ListFiles& list) {
  if (request.options.streaming == 0) return open_records(request, reader(request), noun, list);
  const auto kept = std::make_shared<KeptRequest>(request);
  const ReadRecords read = [kept, own = reader(kept->request)](
                               const std::vector<std::string>& names, data::Split split) {
    return own(names, split);
  };
  data::Datasets out = open_records(kept->request, read, noun, list);
  // They belong to the caller's start.
  kept->how.poll = {};
  kept->how.progress = {};
  return out;
}

data::Datasets RecordTask::open(const DataRequest& request) const {
  return open_task_records(
      request, [this](const DataRequest& kept) { return reader(kept); }, noun());
}

data::OpenedDataset RecordTask::open_held_out(const DataRequest& request,
                                              const std::vector<std::string>& names,
                                              const std::string& key) const {
  return open_held_out_records(names, key, reader(request), noun());
}

std::unique_ptr<data::Dataset> RecordTask::open_to_predict(
    const DataRequest& request, const std::vector<std::string>& names) const {
  if (!has_metrics()) return Task::open_to_predict(request, names);  // throws
  return reader(request)(names, data::Split::Test);
}

}  // namespace tessera::tasks
