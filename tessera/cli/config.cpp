// SPDX-License-Identifier: Apache-2.0
// tessera config: what the keys of a configuration mean.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_commands.h"
#include "tessera/cli/config_file.h"
#include "tessera/config/document.h"
#include "tessera/models/family.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"
#include "tessera/planner/train_config.h"

namespace tessera::cli {
namespace {

constexpr const char* kIntroduction =
    R"(# Configuration

This page is made by `tessera config docs` from the list that reads, checks and writes the keys.

A configuration is one JSON object. `//`, `/* */` and `#` comments and trailing commas are allowed, duplicate keys
are not. `5e8` is an integer where one is meant; `null` counts as not given. Every message has line, column and key
path, and all problems are told at once. `--set KEY=VALUE` overrides a key; `optimizer.lr` and `scheduler.X` are short
for `optimizer.params.lr` and `scheduler.params.X`. Relative paths are relative to the working directory.

A DeepSpeed configuration is valid as it stands: [deepspeed.md](deepspeed.md) says what becomes of each of its keys.
`tessera config explain FILE` prints every value of a file and where it comes from, `tessera config convert` writes it
in the words of another system.
)";

constexpr const char* kDeepSpeed =
    R"(# DeepSpeed's configuration

This page is made by `tessera config docs deepspeed` from the table that reads the keys. A configuration for DeepSpeed
0.19 is valid as it stands: every key is done, or accepted and told once because it has no meaning here, or refused
before anything starts, with the reason and the nearest way. `tessera config explain FILE` says it of one file;
`--strict` exits 2 if `train` would refuse anything in it.

## How files are read

- As JSON, and what Hjson adds to it where that cannot be misread: `//`, `/* */` and `#` comments, trailing commas, the
  end of a line instead of a comma, keys without quotes, strings in single quotes or `'''` over several lines, and a
  word without quotes that ends its line. A file whose name ends in `.hjson` is read as Hjson proper, where a string
  without quotes reaches to the end of its line, comment marks and commas included.
- URL-safe base64 of the text may stand in place of the path, as DeepSpeed's tuner passes it.
- `5e8` is an integer where one is meant. A key that stands twice in an object is an error, and so is one that is
  misspelt, shortened or has a blank at its end: the message has the nearest name.
- Old spellings mean their new names, and what the command line says wins over either. `zero_optimization: true` is
  stage 1.
- Contradictions are told all at once, with their places and numbers: fp16 and bf16, amp beside either or ZeRO,
  torch_autocast beside any of the three, a batch that is not micro x accumulation x ranks, `max_grad_norm` among the
  optimizer's parameters, offload or shards that need another stage, elasticity beside pipeline
  stages or a batch size.
- A key that neither DeepSpeed nor tessera knows is an error. `tessera config explain` warns of it in a file that has no
  key of tessera's own, because it may be another tool's.

## "auto"

Hugging Face's Trainer fills `"auto"` in; so does tessera, from the same flags on its own command line.

| key | from |
|---|---|
| `train_micro_batch_size_per_gpu`, `gradient_accumulation_steps`, `train_batch_size` | `--per_device_train_batch_size`, `--gradient_accumulation_steps`, else the others of the three; without any it is an error |
| `optimizer.params.lr` | `--learning_rate`; without it is an error |
| `optimizer.params.betas`, `eps`, `weight_decay` | `--adam_beta1`, `--adam_beta2`, `--adam_epsilon`, `--weight_decay`, else 0.9, 0.999, 1e-8 and 0 |
| `scheduler.params.warmup_min_lr`, `warmup_max_lr` | 0, and the learning rate |
| `scheduler.params.warmup_num_steps`, `total_num_steps` | `--warmup_steps` or `--warmup_ratio`, else 0, and the steps of the run |
| `gradient_clipping` | `--max_grad_norm`, else 1.0 |
| `fp16.enabled`, `bf16.enabled` | `--fp16`, `--bf16`, else false |
| `zero_optimization.reduce_bucket_size` | hidden size squared |
| `zero_optimization.stage3_prefetch_bucket_size` | 0.9 x hidden size squared |
| `zero_optimization.stage3_param_persistence_threshold` | 10 x hidden size |
| any other | its default |

## Keys
)";

// Those of the optimizers or schedules that have a parameter of this name.
template <class Build>
std::vector<std::string> holders_of(const std::string& name,
                                    const std::vector<std::string>& types,
                                    const Build& build) {
  const json::Value params = json::Value::object({{name, json::Value()}});
  std::vector<std::string> out;
  for (const std::string& type : types) {
    config::Problems problems;
    build(type, params, problems);
    const bool refused =
        std::any_of(problems.list().begin(), problems.list().end(), [&](const auto& problem) {
          return problem.path == name && problem.kind != config::Problems::Kind::Missing;
        });
    if (!refused) out.push_back(type);
  }
  return out;
}

// "optimizer.params.lr", or "optimizer.lr" for short: nothing for a name that none of them has.
std::optional<std::string> explain_parameter(const std::string& path) {
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string section = path.substr(0, dot);
  std::string name = path.substr(dot + 1);
  if (name.starts_with("params.")) name = name.substr(7);
  config::Origins origins;
  std::vector<std::string> holders;
  if (section == "optimizer") {
    holders = holders_of(
        name, optim::rules().names(), [&](const auto& type, const auto& params, auto& problems) {
          optim::rules().get(type)(params, problems, origins);
        });
  } else if (section == "scheduler") {
    const optim::ScheduleContext context{.base_lr = 1e-3};
    holders = holders_of(name,
                         optim::schedules().names(),
                         [&](const auto& type, const auto& params, auto& problems) {
                           optim::schedules().get(type)(params, context, problems, origins);
                         });
  }
  if (holders.empty()) return std::nullopt;
  return fmt::format("{}.params.{}: a parameter of {}.type {}\n",
                     section,
                     name,
                     section,
                     text::join(holders, ", "));
}

// All keys: the section `model` once for each family, the default one first.
std::vector<config::KeyDoc> all_keys() {
  std::vector<config::KeyDoc> keys = config::document(planner::TrainConfig());
  const auto in_model = [](const config::KeyDoc& key) { return key.path.starts_with("model."); };
  auto end = std::find_if(keys.rbegin(), keys.rend(), in_model).base();
  for (const std::string& family : models::families().names()) {
    if (family == models::default_family()) continue;
    std::vector<config::KeyDoc> own = config::document(models::ModelOptions(family));
    for (config::KeyDoc& key : own)
      key.path = "model." + key.path;
    own.insert(own.begin(),
               config::KeyDoc{fmt::format("model ({})", family),
                              "",
                              "",
                              "",
                              fmt::format("The keys with `model.family` {}.", family)});
    end = keys.insert(end, own.begin(), own.end()) + static_cast<std::ptrdiff_t>(own.size());
  }
  return keys;
}

int explain(const std::string& path) {
  bool found = false;
  std::vector<std::string> names;
  for (const config::KeyDoc& key : all_keys()) {
    // Families share keys.
    if (std::find(names.begin(), names.end(), key.path) != names.end()) continue;
    names.push_back(key.path);
    if (key.path != path && key.path.substr(0, path.size() + 1) != path + "." && !path.empty())
      continue;
    std::fputs(config::explain(key).c_str(), stdout);
    found = true;
  }
  if (found) return kExitOk;
  const auto parameter = explain_parameter(path);
  TESSERA_REQUIRE(parameter.has_value(),
                  Config,
                  fmt::format("there is no key {}", path),
                  config::unknown_key_fix(path, names, names));
  std::fputs(parameter->c_str(), stdout);
  return kExitOk;
}

int docs(const std::string& page) {
  const std::vector<config::KeyDoc> keys = all_keys();
  if (page.empty()) {
    std::printf("%s%s", kIntroduction, config::markdown(keys).c_str());
  } else {
    TESSERA_REQUIRE(page == "deepspeed",
                    Config,
                    fmt::format("there is no page {}", page),
                    "tessera config docs, or tessera config docs deepspeed");
    std::printf("%s%s", kDeepSpeed, config::deepspeed_markdown(keys).c_str());
  }
  return kExitOk;
}

const std::vector<std::string> kActions = {"explain", "convert", "docs"};

// Whether there is a file or a flag among the words after `explain`.
bool is_about_file(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("-") || names_config(word);
  });
}

[[noreturn]] void refuse_action(const std::string& what) {
  const bool later = what == "schema";
  throw Error(later ? Error::Kind::Unsupported : Error::Kind::Config,
              later ? "not built yet: tessera config " + what : "unknown: tessera config " + what,
              later ? "tessera config explain" : text::suggestion(what, kActions));
}

int config_command(const std::vector<std::string>& line) {
  if (!line.empty()) {
    const std::vector<std::string> rest(line.begin() + 1, line.end());
    const std::string& action = line.front();
    if (action == "convert") return convert_file(rest);
    if (action == "explain" && is_about_file(rest)) return explain_file(rest);
    const bool known = std::find(kActions.begin(), kActions.end(), action) != kActions.end();
    if (!known && !action.starts_with("-")) refuse_action(action);
  }
  std::string what, key;
  Arguments arguments("config",
                      "Explains keys of a configuration or a whole file, and converts files.",
                      {"tessera config explain                   every key",
                       "tessera config explain optimizer         one section",
                       "tessera config explain trainer.seed      one key",
                       "tessera config explain ds_config.json    every value of a file",
                       "tessera config convert ds_config.json --to tessera",
                       "tessera config docs                      docs/config.md",
                       "tessera config docs deepspeed            docs/deepspeed.md"});
  arguments.positional("WHAT", &what, "explain, convert or docs");
  arguments.positional("KEY", &key, "Key, section, file or page", /*required=*/false);
  Common common;  // there is nothing else to say
  arguments.common(common);
  if (!arguments.parse(line)) return kExitOk;
  if (what == "explain") return explain(key);
  if (what == "docs") return docs(key);
  refuse_action(what);
}

TESSERA_COMMAND("config", "explain keys and files of configurations, convert them", config_command);

}  // namespace
}  // namespace tessera::cli
