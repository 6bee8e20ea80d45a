// SPDX-License-Identifier: Apache-2.0
// Completes a plan with what depends on its data.
#pragma once

#include "tessera/data/dataset.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {

/// Sets the tensors of a sample, and a sequence_length of 1 if the samples are not sequences, and
/// adds the course of a training that begins. Throws the errors of course_of(), Error{Config} if
/// the data's samples have another length than the plan or if there is nothing to evaluate on, and
/// Error{Shape} if the tensors of the datasets are wrong.
PlanWithData with_data(const Plan& plan, const data::Datasets& data);

/// The course of a training that continues from `from`: its epochs are counted from there. Throws
/// Error{Config} if there is nothing to train.
Course course_of(const Plan& plan, const data::Datasets& data, const Position& from = {});

}  // namespace tessera::planner
