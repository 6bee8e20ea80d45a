// SPDX-License-Identifier: Apache-2.0
// Names that options of other programs set instead of keys: what they mean follows from several
// options together.
#pragma once

#include <string_view>

namespace tessera::interop::foreign_keys {

inline constexpr std::string_view kBetas = "betas#";          // followed by the index
inline constexpr std::string_view kWarmup = "@warmup_steps";  // resolved when the schedule is known
inline constexpr std::string_view kSchedule = "scheduler.type";
/// Hugging Face's strategies, which are combined with the steps.
inline constexpr std::string_view kEvaluate = "@evaluate", kSave = "@save";
inline constexpr std::string_view kMetric = "@best_metric", kGreater = "@greater_is_better";
/// A share of the run's steps.
inline constexpr std::string_view kRatio = "@warmup_ratio";
/// Resolved when the stages are known.
inline constexpr std::string_view kVirtual = "@layers_of_chunk";
/// DeepSpeed-Chat's settings that depend on others.
inline constexpr std::string_view kLoraRate = "@adapter_rate", kMinimumRate = "@lowest_rate",
                                  kPromptLength = "@prompt_length",
                                  kAnswerLength = "@answer_length", kFurtherData = "@further_data";
/// How ranks that share a sequence exchange it: Megatron-LM's setting.
inline constexpr std::string_view kSharing = "@context_mode";
inline constexpr std::string_view kChunks = "parallel.pipeline.chunks";
inline constexpr std::string_view kNoHosts = "remove it: -n 2 starts two ranks on this host";

}  // namespace tessera::interop::foreign_keys
