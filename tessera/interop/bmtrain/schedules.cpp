// SPDX-License-Identifier: Apache-2.0
// Noam, Linear, Cosine, Exponential and NoDecay with BMTrain's parameters: n = update - 1, rates
// instead of factors. start_lr replaces the optimizer's rate.
#include <algorithm>
#include <cmath>

#include "tessera/optim/schedule_table.h"

namespace tessera::interop {
namespace {

using optim::at_least_one, optim::half_cosine;
using optim::Given, optim::ScheduleParam;

const ScheduleParam kStart{"start_lr", &Given::peak, 0, {.min = 0}};
const ScheduleParam kWarmupSteps{"warmup_iter", &Given::warmup, 0, {.unit = "steps", .min = 0}};
const ScheduleParam kEnd{"end_iter", &Given::total, 0, {.unit = "steps", .min = 1}};
/// The library's signature has end_iter for every schedule; its examples pass -1.
const ScheduleParam kUnusedEnd{"end_iter", &Given::unused, 0, {.unit = "steps"}};
/// Noam's warm-up is also the unit of its decay.
const ScheduleParam kUnit{"warmup_iter",
                          &Given::warmup,
                          0,
                          {.text = "Number of linear warm-up steps from 0.",
                           .unit = "steps",
                           .min = 1,
                           .required = true}};
/// Hugging Face's linear and cosine have the same names.
const std::vector<std::string_view> kOwn = {"start_lr", "warmup_iter", "end_iter"};

double climb(double top, const Given& v, std::int64_t n) {
  return top * static_cast<double>(n) / static_cast<double>(v.warmup);
}
double rise(const Given& v, std::int64_t n) {
  return climb(v.top(), v, n);
}

double linear(const Given& v, std::int64_t n) {
  return std::max(0.0,
                  v.top() * static_cast<double>(v.total - n) / at_least_one(v.total - v.warmup));
}

/// Rises again after its end, as in the library.
double cosine(const Given& v, std::int64_t n) {
  return v.top() *
         half_cosine(static_cast<double>(n - v.warmup) / at_least_one(v.total - v.warmup));
}

const bool kBmTrainSchedules = optim::add_schedules({
    {.type = "Noam",
     .params = {kStart, kUnit, kUnusedEnd},
     .rise =
         [](const Given& v, std::int64_t n) {
           return climb(v.top() / std::sqrt(at_least_one(v.warmup)), v, n);
         },
     .fall = [](const Given& v, std::int64_t n) { return v.top() / std::sqrt(at_least_one(n)); }},
    {.type = "linear",
     .params = {kStart, kWarmupSteps, kEnd},
     .rise = rise,
     .fall = linear,
     .total_after_warmup = "end_iter",
     .selected_by = kOwn},
    {.type = "cosine",
     .params = {kStart, kWarmupSteps, kEnd},
     .rise = rise,
     .fall = cosine,
     .total_after_warmup = "end_iter",
     .selected_by = kOwn},
    {.type = "Exponential",
     .params = {kStart, kWarmupSteps, kUnusedEnd, {"gamma", &Given::gamma, 0.95, {.min = 0}}},
     .rise = rise,
     .fall =
         [](const Given& v, std::int64_t n) {
           return v.top() * std::pow(v.gamma, static_cast<double>(n - v.warmup));
         }},
    {.type = "NoDecay",
     .params = {kStart, kWarmupSteps, kUnusedEnd},
     .rise = rise,
     .fall = [](const Given& v, std::int64_t) { return v.top(); }},
});

}  // namespace
}  // namespace tessera::interop
