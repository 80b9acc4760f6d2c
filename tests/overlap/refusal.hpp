#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "stretto/error.hpp"

namespace stretto {

// Expects the call to throw Error(invalid_argument) whose message contains `words`.
template <class Call>
void expect_refusal(Call call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "nobody refused: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

}  // namespace stretto
