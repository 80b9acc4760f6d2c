#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "stretto/error.hpp"

namespace stretto {

// The call throws Error(invalid_argument) whose sentence holds these words.
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
