// SPDX-License-Identifier: Apache-2.0
// tessera models: the models that are on this machine and can be used by name.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/model_source.h"

namespace tessera::cli {
namespace {

struct Row {
  hub::LocalModel model;
  std::uint64_t bytes = 0;
  std::string family;  ///< empty: it cannot be read
  std::int64_t parameters = 0;
  std::string why;  ///< the reason why it cannot be read
};

/// Weights, gradients and the two moments of Adam in fp32: what training needs at least.
constexpr std::int64_t kTrainingBytes = 16;

Row row_of(const hub::LocalModel& model) {
  Row out{.model = model, .bytes = hub::bytes_of_folder(model.folder)};
  try {
    const models::ModelSource source = models::open_model_source(model.folder);
    config::Problems problems;
    const models::Resolved resolved = models::resolve(source.model,
                                                      source.model->vocab_size.value_or(1),
                                                      std::nullopt,
                                                      problems,
                                                      {},
                                                      source.objective);
    problems.raise();
    out.family = source.model.family();
    out.parameters = resolved.num_parameters;
  } catch (const Error& error) {
    out.why = text::split(error.what(), '\n').front();
  }
  return out;
}

json::Value as_json(const std::vector<Row>& rows) {
  json::Value out = json::Value::array();
  for (const Row& row : rows) {
    json::Value one;
    one["name"] = json::Value::string(row.model.name);
    one["folder"] = json::Value::string(row.model.folder.string());
    one["bytes"] = json::Value::integer(static_cast<std::int64_t>(row.bytes));
    if (row.why.empty()) {
      one["family"] = json::Value::string(row.family);
      one["parameters"] = json::Value::integer(row.parameters);
      one["training_bytes"] = json::Value::integer(row.parameters * kTrainingBytes);
    } else {
      one["why_unusable"] = json::Value::string(row.why);
    }
    out.push_back(std::move(one));
  }
  return out;
}

void print_table(const std::vector<Row>& rows) {
  std::size_t width = 5;
  for (const Row& row : rows)
    width = std::max(width, row.model.name.size());
  std::printf("%s\n",
              fmt::format("{:<{}}  {:<10}  {:>10}  {:>10}  to train, without activations",
                          "model",
                          width,
                          "family",
                          "parameters",
                          "on disk")
                  .c_str());
  for (const Row& row : rows) {
    const std::string name = text::printable(row.model.name);
    const std::string line =
        row.why.empty()
            ? fmt::format("{:<{}}  {:<10}  {:>10}  {:>10}  {}",
                          name,
                          width,
                          row.family,
                          text::count(static_cast<double>(row.parameters)),
                          text::bytes(row.bytes),
                          text::bytes(static_cast<std::uint64_t>(row.parameters * kTrainingBytes)))
            : fmt::format("{:<{}}  cannot be used: {}", name, width, text::printable(row.why));
    std::printf("%s\n", line.c_str());
  }
}

int models_command(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments("models",
                      "Lists the models on this machine that can be named as on Hugging Face, in "
                      "--model, model.from and every "
                      "command: those in the folders of TESSERA_MODELS and in Hugging Face's "
                      "cache. Nothing is fetched.",
                      {"tessera models",
                       "TESSERA_MODELS=/data/models tessera models --json",
                       "tessera chat Qwen/Qwen2.5-0.5B-Instruct"});
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  std::vector<Row> rows;
  for (const hub::LocalModel& model : hub::local_models())
    rows.push_back(row_of(model));
  if (common.json) {
    std::printf("%s\n", as_json(rows).dump().c_str());
    return kExitOk;
  }
  if (rows.empty()) {
    std::printf("no models; looked in %s and the folders of TESSERA_MODELS\n",
                hub::hub_cache().c_str());
    return kExitOk;
  }
  print_table(rows);
  return kExitOk;
}

TESSERA_COMMAND("models", "list the models on this machine by name", models_command);

}  // namespace
}  // namespace tessera::cli
