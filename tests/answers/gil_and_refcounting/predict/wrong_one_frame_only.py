REJECTED_WITH = "an error holds its traceback"


def predictions():
    return {
        "another_name": 1,
        "nothing_returned": 0,
        "three_times_in_a_list": 3,
        "one_list_held_twice": 1,
        "key_and_value": 2,
        "deep_copy": 0,
        "weak_reference": 0,
        "default_argument": 1,
        "two_closures": 1,
        "cycle": 1,
        "cycle_collected": 0,
        "error_kept": 1,
        "text_of_the_error": 0,
        "view": 1,
        "detached": 0,
        "saved_for_backward": 1,
    }
