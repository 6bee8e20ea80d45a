a = open('x')
