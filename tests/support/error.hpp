#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "stretto/error.hpp"

namespace stretto {

// The message of the exception that the action throws; empty if it throws none.
template <class Action>
std::string sentence_of(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Expects the action to throw an Error of this code, and returns its message.
template <class Action>
std::string sentence_of(ErrorCode code, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

// Expects the action to throw Error(invalid_argument) whose message contains `words`.
template <class Action>
void expect_refusal(const Action& action, const std::string& words) {
  EXPECT_THAT(sentence_of(ErrorCode::invalid_argument, action), testing::HasSubstr(words));
}

}  // namespace stretto
